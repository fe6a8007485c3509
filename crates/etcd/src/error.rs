//! Errors of the library as errors of the directory.

use haversack_directory::DirectoryError;

/// Makes the error of a call.
pub(crate) fn failed(endpoint: &str, what: &str, error: &etcd_client::Error) -> DirectoryError {
    DirectoryError::Call {
        endpoint: endpoint.into(),
        what: what.into(),
        why: text(error),
        is_connection: is_connection(error),
    }
}

/// Returns an error of the library with its causes: its own text leaves them out.
pub(crate) fn text(error: &etcd_client::Error) -> String {
    match error {
        etcd_client::Error::GRpcStatus(status) => with_causes(status.message().to_string(), status),
        etcd_client::Error::TransportError(error) => with_causes(error.to_string(), error),
        other => other.to_string(),
    }
}

fn with_causes(mut text: String, error: &dyn std::error::Error) -> String {
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = if text.is_empty() { words } else { format!("{text}: {words}") };
        }
        cause = error.source();
    }
    if text.is_empty() { error.to_string() } else { text }
}

/// Returns whether another connection may do better: it was the connection or the member that failed, and not the
/// request.
fn is_connection(error: &etcd_client::Error) -> bool {
    // gRPC: invalid argument, not found, permission denied, resource exhausted, failed precondition.
    const OF_THE_REQUEST: [i32; 5] = [3, 5, 7, 8, 9];
    match error {
        etcd_client::Error::GRpcStatus(status) => !OF_THE_REQUEST.contains(&(status.code() as i32)),
        _ => true,
    }
}
