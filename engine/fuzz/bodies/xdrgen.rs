//! Descriptions of data and programs. A mistake has a place in the text; what has none is generated, the
//! same way each time.

use spinrpc_xdrgen::Generator;

/// The input is the text.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let generator = Generator::new();
    match generator.rust("fuzz.x", text) {
        Ok(rust) => assert_eq!(generator.rust("fuzz.x", text), Ok(rust)),
        Err(error) => {
            // Lines that begin with `# NUMBER "FILE"` say where the next ones come from.
            let lines = text.split('\n').count();
            let is_within = error.line <= lines || text.contains("# ");
            assert!(error.line > 0 && is_within, "{error}");
            assert!(error.column > 0 && !error.problem.is_empty() && !error.remedy.is_empty());
        }
    }
}
