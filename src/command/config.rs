//! `keylatch config show`: the settings in force, and where each comes from.
//!
//! The list is that of the layers (`src/config/layers.rs`), which shows no password. Tested in
//! `tests/cli/config/commands.rs`.

use serde_json::json;

use super::table::{Table, print_json};
use crate::config::Setting;

/// Prints settings as a table, or as JSON on a line each.
pub fn print_settings(settings: &[Setting], json: bool) -> std::io::Result<()> {
    let mut table = Table::new(&["SETTING", "VALUE", "FROM"]);
    for Setting { name, value, origin } in settings {
        if json {
            print_json(&json!({"name": name, "value": value, "from": origin}).to_string())?;
        } else {
            table.add([name.clone(), value.clone(), origin.clone()]);
        }
    }
    if json { Ok(()) } else { table.print() }
}
