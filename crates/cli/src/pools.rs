//! `haversack pool`: commands that need the daemon.

use std::path::Path;

use haversack_api::{AddDevice, PoolStatus};
use hyper::Method;

use crate::arguments::PoolCommand;
use crate::client::Client;
use crate::error::{CliError, Result};
use crate::output::{Style, print};
use crate::place::absolute;
use crate::run::{part, work};
use crate::show;

/// Runs a command that needs the daemon.
pub fn run(client: &Client, command: &PoolCommand, style: Style) -> Result<()> {
    match command {
        PoolCommand::Add { pool_or_device, device, size, force } => {
            let (pool, device) = named(client, pool_or_device, device.as_deref())?;
            let path = absolute(Path::new(&device))?.display().to_string();
            let done = format!("{path}: added to pool {pool}");
            let body = AddDevice { path, size: *size, force: *force };
            let url = format!("/v1/pools/{}/devices", part(&pool)?);
            work(client, Method::POST, &url, Some(&body), &done, style)
        }
        PoolCommand::Remove { pool_or_device, device } => {
            let (pool, device) = named(client, pool_or_device, device.as_deref())?;
            remove(client, &pool, &device, style)
        }
        PoolCommand::List => {
            let pools: Vec<PoolStatus> = client.get("/v1/pools")?;
            print(style.as_json, &pools, &show::pools(&pools))
        }
        PoolCommand::Status { pool: Some(name) } => {
            let status: PoolStatus = client.get(&format!("/v1/pools/{}", part(name)?))?;
            print(style.as_json, &status, &show::pool(&status))
        }
        PoolCommand::Status { pool: None } => {
            let pools: Vec<PoolStatus> = client.get("/v1/pools")?;
            print(style.as_json, &pools, &show::whole_pools(&pools))
        }
        PoolCommand::Create { .. } | PoolCommand::Check { .. } | PoolCommand::Wipe { .. } => Ok(()),
    }
}

/// Removes a device, named by its path or number.
fn remove(client: &Client, pool: &str, device: &str, style: Style) -> Result<()> {
    let status: PoolStatus = client.get(&format!("/v1/pools/{}", part(pool)?))?;
    let path = absolute(Path::new(device))?.display().to_string();
    let is_named = |path: &str, number: &str| path == device || number == device;
    let named = status.devices.iter().find(|d| is_named(&d.path, &d.number.to_string()));
    let Some(found) = named.or_else(|| status.devices.iter().find(|d| d.path == path)) else {
        let paths: Vec<_> = status.devices.iter().map(|d| d.path.as_str()).collect();
        return Err(CliError::Usage(format!(
            "pool '{pool}' has no device '{device}'; it has: {}",
            paths.join(", ")
        )));
    };
    let done = format!("{}: removed from pool {pool}", found.path);
    let url = format!("/v1/pools/{pool}/devices/{}", found.number);
    work(client, Method::DELETE, &url, None::<&()>, &done, style)
}

/// Returns the pool and the device that are named: the device alone if the daemon has one pool.
fn named(client: &Client, first: &str, second: Option<&str>) -> Result<(String, String)> {
    if let Some(device) = second {
        return Ok((first.into(), device.into()));
    }
    let pools = names(client)?;
    if pools.iter().any(|name| name == first) {
        return Err(CliError::Usage(format!("name the device as well: '{first}' is a pool")));
    }
    Ok((only(pools)?, first.into()))
}

/// Returns the name of a pool: the given one, or that of the daemon's only pool.
pub fn given_or_only(client: &Client, given: Option<&str>) -> Result<String> {
    match given {
        Some(name) => Ok(name.into()),
        None => only(names(client)?),
    }
}

fn names(client: &Client) -> Result<Vec<String>> {
    let pools: Vec<PoolStatus> = client.get("/v1/pools")?;
    Ok(pools.into_iter().map(|pool| pool.name).collect())
}

/// Returns the only one of the daemon's pools.
fn only(mut pools: Vec<String>) -> Result<String> {
    match (pools.len(), pools.pop()) {
        (1, Some(name)) => Ok(name),
        (_, Some(last)) => {
            pools.push(last);
            Err(CliError::Usage(format!("the daemon has several pools: name one of {}", pools.join(", "))))
        }
        (_, None) => Err(CliError::Usage(
            "the daemon has no pool: create one with 'haversack pool create', and add it to haversackd.toml"
                .into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_pool_need_not_be_named() {
        let pools = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(only(pools(&["main"])).unwrap(), "main");
        let several = only(pools(&["main", "fast"])).unwrap_err();
        assert!(several.to_string().ends_with("name one of main, fast"), "{several}");
        assert_eq!((several.exit_code(), only(pools(&[])).unwrap_err().exit_code()), (2, 2));
    }
}
