//! Checks of the drivers' settings.

/// A rejected setting, with the allowed values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct SettingError {
    /// The field of the driver's configuration.
    pub key: &'static str,
    /// The allowed values.
    pub reason: String,
}

pub(crate) fn within(
    key: &'static str,
    value: u64,
    (least, most): (u64, u64),
) -> Result<(), SettingError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(SettingError { key, reason: format!("must be from {least} to {most}, not {value}") })
}
