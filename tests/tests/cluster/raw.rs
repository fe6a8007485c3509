//! A client of etcd that accesses the raw keys.

use std::future::Future;

use etcd_client::{Client, GetOptions, Permission, PermissionType, PutOptions, ResponseHeader};
use haversack_e2e::{Error, Result};
use tokio::runtime::Runtime;

/// See the module.
pub struct Raw {
    runtime: Runtime,
    client: Client,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Check(format!("etcd: {error}"))
}

impl Raw {
    pub fn connect(endpoint: &str) -> Result<Raw> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let client = runtime.block_on(Client::connect([endpoint], None)).map_err(failed)?;
        Ok(Raw { runtime, client })
    }

    fn wait<T>(&self, call: impl Future<Output = std::result::Result<T, etcd_client::Error>>) -> Result<T> {
        self.runtime.block_on(call).map_err(failed)
    }

    pub fn get(&self, key: &str) -> Result<Option<String>> {
        let answer = self.wait(self.client.kv_client().get(key, None))?;
        let value = answer.kvs().first().map(|kv| kv.value_str().map(str::to_owned));
        value.transpose().map_err(failed)
    }

    pub fn keys(&self, prefix: &str) -> Result<Vec<String>> {
        let options = GetOptions::new().with_prefix().with_keys_only();
        let answer = self.wait(self.client.kv_client().get(prefix, Some(options)))?;
        answer.kvs().iter().map(|kv| kv.key_str().map(str::to_owned).map_err(failed)).collect()
    }

    pub fn put(&self, key: &str, value: &str) -> Result<()> {
        self.wait(self.client.kv_client().put(key, value, None)).map(drop)
    }

    /// Sets a key under a lease of this many seconds that is not renewed.
    pub fn put_for(&self, key: &str, value: &str, seconds: i64) -> Result<()> {
        let lease = self.wait(self.client.lease_client().grant(seconds, None))?.id();
        let options = PutOptions::new().with_lease(lease);
        self.wait(self.client.kv_client().put(key, value, Some(options))).map(drop)
    }

    pub fn delete(&self, key: &str) -> Result<()> {
        self.wait(self.client.kv_client().delete(key, None)).map(drop)
    }

    pub fn revision(&self) -> Result<i64> {
        let answer = self.wait(self.client.kv_client().get("any", None))?;
        Ok(answer.header().map_or(0, ResponseHeader::revision))
    }

    /// Lets etcd ask for users: `root`, and one that may read and write the directory.
    pub fn ask_for_users(&self, user: &str, password: &str) -> Result<()> {
        let mut client = self.client.clone();
        self.wait(async {
            client.user_add("root", "root", None).await?;
            client.role_add("root").await?;
            client.user_grant_role("root", "root").await?;
            client.role_add("directory").await?;
            let all = Permission::new(PermissionType::Readwrite, "/haversack/").with_prefix();
            client.role_grant_permission("directory", all).await?;
            client.user_add(user, password, None).await?;
            client.user_grant_role(user, "directory").await?;
            client.auth_enable().await.map(drop)
        })
    }

    /// Forgets all history.
    pub fn compact(&self) -> Result<()> {
        let revision = self.revision()?;
        self.wait(self.client.kv_client().compact(revision, None)).map(drop)
    }
}
