use super::super::OpenError;

/// A URL of several hosts: `SCHEME://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/PATH][?QUERY]`.
pub(super) struct ManyHosts<'a> {
    scheme: &'static str,
    /// With the `@` behind them, or empty.
    credentials: &'a str,
    pub(super) hosts: Vec<&'a str>,
    /// Without the first `/`.
    pub(super) path: &'a str,
    query: &'a str,
}

impl<'a> ManyHosts<'a> {
    pub(super) fn parse(url: &'a str) -> Result<Self, OpenError> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("it has no `://`"))?;
        let scheme = if scheme.starts_with("rediss") { "rediss" } else { "redis" };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A password may have an `@` and, unescaped, a `/`: hosts have neither.
        let hosts_at = rest.rfind('@').map_or(0, |at| at + 1);
        let (credentials, rest) = rest.split_at(hosts_at);
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let hosts: Vec<_> = hosts.split(',').map(str::trim).collect();
        if hosts.iter().any(|host| host.is_empty()) {
            return Err(bad("it needs hosts with a comma between them"));
        }
        Ok(Self { scheme, credentials, hosts, path, query })
    }

    /// The URL of one host with the same credentials.
    pub(super) fn of_host(&self, host: &str, database: &str) -> String {
        format!("{}://{}{host}/{database}", self.scheme, self.credentials)
    }

    /// The URL of one host with other credentials, which are percent-encoded and have an `@` behind
    /// them, or none.
    pub(super) fn of_host_as(&self, credentials: &str, host: &str, default_port: u16) -> String {
        let has_port = host.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
        let port = if has_port { String::new() } else { format!(":{default_port}") };
        format!("{}://{credentials}{host}{port}", self.scheme)
    }

    /// The values of the parameters that may be there, as they are written.
    pub(super) fn parameters<const N: usize>(
        &self,
        known: [&str; N],
    ) -> Result<[Option<&'a str>; N], OpenError> {
        let mut values = [None; N];
        for parameter in self.query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let at = known.iter().position(|name| *name == key);
            values[at.ok_or_else(|| bad("it has a parameter that is not known here"))?] =
                Some(value);
        }
        Ok(values)
    }
}

/// An error that says nothing of the URL, which may hold a password.
pub(super) fn bad(why: &str) -> OpenError {
    OpenError::BadRedisUrl(why.to_owned())
}
