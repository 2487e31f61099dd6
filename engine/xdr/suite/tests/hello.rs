//! The example of stubs in the README works, and is the code of this file.
#![allow(clippy::unwrap_used, reason = "a test ends here")]

use spinrpc::{Config, Engine};
use spinrpc_xdr::rpc::TypedCall;
use spinrpc_xdr_suite::hello::{Name, hello_v1};
use std::error::Error;

// README begins.
struct Hello;

impl hello_v1::Service for Hello {
    fn greet(&mut self, name: Name<'_>, call: TypedCall<'_, hello_v1::Greet>) {
        call.reply(&name);
    }
}

fn serve(engine: &Engine) -> Result<(), Box<dyn Error>> {
    engine.serve(hello_v1::PROGRAM, hello_v1::VERSION, |_core| hello_v1::Server(Hello))?;
    Ok(engine.listen("shm:hello")?)
}

fn greet(name: &str) -> Result<String, Box<dyn Error>> {
    let mut hello = hello_v1::connect("shm:hello")?;
    Ok(hello.greet(&Name::new(name)?, |answer| answer.to_string())?)
}
// README ends.

#[test]
fn the_example_answers() {
    let engine = Engine::new(Config::default()).unwrap();
    serve(&engine).unwrap();
    let running = engine.start().unwrap();
    assert_eq!(greet("world").unwrap(), "world");
    assert!(greet(&"long ".repeat(20)).is_err());
    engine.shutdown();
    running.join().unwrap();
}

#[test]
fn the_readme_has_the_code_and_the_description() {
    let readme = include_str!("../../README.md");
    let (_, code) = include_str!("hello.rs").split_once("// README begins.\n").unwrap();
    let (code, _) = code.split_once("// README ends.").unwrap();
    assert!(readme.contains(code), "README has other code than this file");
    assert!(readme.contains(include_str!("../x/hello.x")), "README has another description");
}
