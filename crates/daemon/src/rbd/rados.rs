//! Advisory locks on an image's header object: the OSD's class `lock`, as `rados lock` uses it.
//!
//! Invariant
//! - The cluster identifies a holder by its connection and a cookie. Each command has its own connection, so one cookie
//!   may hold a shared lock several times.

use serde_json::Value;

use super::Image;

/// A lock as the cluster describes it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LockInfo {
    /// `exclusive` or `shared`; without lockers it means nothing.
    pub kind: String,
    /// What all holders of a shared lock have in common.
    pub tag: String,
    /// Its holders.
    pub lockers: Vec<Locker>,
}

/// A holder of a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Locker {
    /// The Ceph client that took it, as `client.4114`.
    pub name: String,
    /// The cookie that the holder has chosen.
    pub cookie: String,
    /// The holder's description of itself.
    pub description: String,
    /// The address of that client.
    pub address: String,
}

impl LockInfo {
    /// Returns the lockers with a cookie, and the others.
    pub fn split(&self, cookie: &str) -> (Vec<&Locker>, Vec<&Locker>) {
        self.lockers.iter().partition(|locker| locker.cookie == cookie)
    }
}

/// A lock that is to be taken.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The name of the lock.
    pub lock: &'a str,
    /// Shared, with this tag.
    pub shared: Option<&'a str>,
    /// The holder's own mark.
    pub cookie: &'a str,
    /// What the holder says of itself.
    pub description: &'a str,
}

/// The object that all clients of an image use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header<'a> {
    image: &'a Image,
    object: String,
}

impl<'a> Header<'a> {
    /// Finds the object, by the image's format.
    ///
    /// # Errors
    /// The cluster does not answer as expected.
    pub fn of(image: &'a Image) -> Result<Header<'a>, String> {
        let info = image.run("rbd", &["info", "--format", "json", "--", &image.path()])?;
        Ok(Header { image, object: header_of(&info, &image.name)? })
    }

    /// Takes a lock.
    ///
    /// # Errors
    /// Another holder's lock excludes this one, or the cluster does not answer.
    pub fn lock(&self, wish: Wish<'_>) -> Result<(), String> {
        let mut options = vec!["--lock-type", if wish.shared.is_some() { "shared" } else { "exclusive" }];
        options.extend(wish.shared.iter().flat_map(|tag| ["--lock-tag", *tag]));
        options.extend(["--lock-cookie", wish.cookie, "--lock-description", wish.description]);
        self.rados(&["lock", "get", &self.object, wish.lock], &options).map(drop)
    }

    /// Takes a lock away from a holder.
    ///
    /// # Errors
    /// The holder does not have it, or the cluster does not answer.
    pub fn unlock(&self, lock: &str, locker: &Locker) -> Result<(), String> {
        let cookie = ["--lock-cookie", &locker.cookie];
        self.rados(&["lock", "break", &self.object, lock, &locker.name], &cookie).map(drop)
    }

    /// Returns who has a lock.
    ///
    /// # Errors
    /// The cluster does not answer as expected.
    pub fn lock_info(&self, lock: &str) -> Result<LockInfo, String> {
        info_of(&self.rados(&["lock", "info", &self.object, lock], &["--format", "json"])?)
    }

    /// Returns the command with which an operator takes a lock away from a holder.
    pub fn unlock_command(&self, lock: &str, locker: &Locker) -> String {
        let Image { pool, namespace, .. } = self.image;
        let namespace = namespace.as_ref().map_or(String::new(), |name| format!(" --namespace {name}"));
        let Locker { name, cookie, .. } = locker;
        format!(
            "rados --pool {pool}{namespace} lock break {} {lock} {name} --lock-cookie {cookie}",
            self.object
        )
    }

    fn rados(&self, command: &[&str], options: &[&str]) -> Result<String, String> {
        let mut place = vec!["--pool", &self.image.pool];
        place.extend(self.image.namespace.iter().flat_map(|namespace| ["--namespace", namespace]));
        self.image.run("rados", &[command, &place, options].concat())
    }
}

fn header_of(info: &str, name: &str) -> Result<String, String> {
    let unreadable = || format!("rbd info printed '{}'", info.trim());
    let info: Value = serde_json::from_str(info).map_err(|_| unreadable())?;
    match (info["format"].as_u64(), info["id"].as_str()) {
        (Some(1), _) => Ok(format!("{name}.rbd")),
        (Some(2), Some(id)) if !id.is_empty() => Ok(format!("rbd_header.{id}")),
        _ => Err(unreadable()),
    }
}

fn info_of(info: &str) -> Result<LockInfo, String> {
    let unreadable = || format!("rados lock info printed '{}'", info.trim());
    let info: Value = serde_json::from_str(info).map_err(|_| unreadable())?;
    let text = |entry: &Value, key: &str| entry[key].as_str().map(str::to_string).ok_or_else(unreadable);
    let locker = |entry: &Value| {
        Ok(Locker {
            name: text(entry, "name")?,
            cookie: text(entry, "cookie")?,
            description: text(entry, "description")?,
            address: text(entry, "addr")?,
        })
    };
    let lockers = info["lockers"].as_array().ok_or_else(unreadable)?.iter().map(locker);
    let lockers = lockers.collect::<Result<Vec<Locker>, String>>()?;
    Ok(LockInfo { kind: text(&info, "type")?, tag: text(&info, "tag")?, lockers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_found_by_the_format() {
        let header = |info: &str| header_of(info, "vm1");
        assert_eq!(
            header(r#"{"format": 2, "id": "100dfa674f3f"}"#).as_deref(),
            Ok("rbd_header.100dfa674f3f")
        );
        assert_eq!(header(r#"{"format": 1}"#).as_deref(), Ok("vm1.rbd"));
        for info in ["", "{}", r#"{"format": 2}"#, r#"{"format": 2, "id": ""}"#] {
            assert!(header(info).is_err_and(|why| why.contains("rbd info printed")), "{info}");
        }
    }

    #[test]
    fn lockers_are_read() {
        let none = info_of(r#"{"name":"haversack","type":"exclusive","tag":"","lockers":[]}"#);
        assert_eq!(none.map(|info| info.lockers), Ok(vec![]));
        let one = r#"{"type":"shared","tag":"haversack/d","lockers":[{"name":"client.4114","cookie":"p/d","description":"here",
                     "expiration":"0.000000","addr":"127.0.0.1:0/705596093"}]}"#;
        let info = info_of(one).expect("a list");
        assert_eq!((info.kind.as_str(), info.tag.as_str()), ("shared", "haversack/d"));
        assert_eq!((info.lockers[0].name.as_str(), info.lockers[0].cookie.as_str()), ("client.4114", "p/d"));
        for info in ["", "{}", r#"{"type":"","tag":"","lockers":[{}]}"#, r#"{"lockers":[]}"#] {
            assert!(info_of(info).is_err_and(|why| why.contains("lock info printed")), "{info}");
        }
    }

    #[test]
    fn an_operator_is_told_how_to_release_a_lock() {
        let image = Image {
            pool: "vms".into(),
            namespace: Some("a".into()),
            name: "vm1".into(),
            user: None,
            conf: None,
        };
        let text = |text: &str| text.to_string();
        let locker =
            Locker { name: text("client.7"), cookie: text("p/d"), description: text(""), address: text("") };
        let header = Header { image: &image, object: text("rbd_header.1") };
        assert_eq!(
            header.unlock_command("haversack", &locker),
            "rados --pool vms --namespace a lock break rbd_header.1 haversack client.7 --lock-cookie p/d"
        );
    }
}
