//! Errors to JavaScript and back: `{ code, message, details }`, rebuilt as `FiresideError` by the TypeScript layer.
use js_sys::Reflect;
use wasm_bindgen::JsValue;

use crate::Error;

/// A plain object that survives structured cloning.
pub fn to_js(error: &Error) -> JsValue {
    let object = js_sys::Object::new();
    let details = serde_json::to_string(&error.details).unwrap_or_else(|_| "{}".to_owned());
    let details = js_sys::JSON::parse(&details).unwrap_or_else(|_| js_sys::Object::new().into());
    for (key, value) in
        [("code", JsValue::from_str(error.code)), ("message", JsValue::from_str(&error.message)), ("details", details)]
    {
        // Setting a property of a fresh plain object cannot fail.
        let _ = Reflect::set(&object, &JsValue::from_str(key), &value);
    }
    object.into()
}

/// The same as JSON text, for event callbacks.
pub fn to_json(error: &Error) -> String {
    let value = serde_json::json!({ "code": error.code, "message": error.message, "details": &*error.details });
    value.to_string()
}

/// What a JavaScript source threw: its own code when it has one, else `source.failed`.
pub fn from_source(thrown: &JsValue) -> Error {
    let field = |name: &str| Reflect::get(thrown, &JsValue::from_str(name)).ok().and_then(|v| v.as_string());
    let message = field("message").unwrap_or_else(|| "the source failed".to_owned());
    let error = match field("code").as_deref().and_then(known) {
        Some(code) => Error { code, message, details: Box::default() },
        None => Error::new("source.failed", message),
    };
    let details = Reflect::get(thrown, &JsValue::from_str("details")).ok().filter(|d| d.is_object());
    let details = details.and_then(|d| js_sys::JSON::stringify(&d).ok()).and_then(|t| t.as_string());
    match details.and_then(|text| serde_json::from_str(&text).ok()) {
        Some(details) => Error { details: Box::new(details), ..error },
        None => error,
    }
}

/// Codes that sources of the package may raise; `code` is static everywhere in the crate.
fn known(code: &str) -> Option<&'static str> {
    const CODES: &[&str] = &[
        "http.bad_range",
        "http.network",
        "http.not_a_model",
        "http.stalled",
        "http.status",
        "http.truncated",
        "source.changed",
        "source.failed",
        "source.short_read",
        "storage.failed",
    ];
    CODES.iter().find(|known| **known == code).copied()
}
