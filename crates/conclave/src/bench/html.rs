//! The result of `bench --against` as a page.

use serde_json::Value;

/// The page of a result.
pub(super) fn page(result: &Value) -> String {
    let text = format!("{result:#}")
        .replace('&', "&amp;")
        .replace('<', "&lt;");
    format!("<!doctype html><title>Conclave beside others</title><pre>{text}</pre>\n")
}
