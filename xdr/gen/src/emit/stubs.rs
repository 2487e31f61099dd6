//! The stubs of one version of a program: a module with markers of its procedures, a service trait, and
//! three clients.

use super::{WIDTH, line};
use crate::model::{Model, Procedure, Program, Ty, Version};
use std::fmt::Write;

/// Writes the module.
pub(super) fn put(out: &mut String, model: &Model, program: &Program, version: &Version) {
    let (name, number) = (&program.name, program.number);
    line!(
        out,
        "\n/// Version {} of program `{name}` ({number}): `{}`.",
        version.number,
        version.name
    );
    line!(out, "pub mod {} {{", version.rust);
    line!(out, "{IMPORTS}");
    line!(
        out,
        "    /// Program number.\n    pub const PROGRAM: rpc::Program = rpc::Program({number});\n"
    );
    line!(out, "    /// Version number.");
    line!(out, "    pub const VERSION: rpc::Version = rpc::Version({});", version.number);
    put_ids(out, version);
    for procedure in &version.procedures {
        put_marker(out, model, procedure);
    }
    put_service(out, model, version);
    put_dispatch(out, version);
    put_client(out, model, version);
    put_blocking(out, model, version);
    put_handle(out, model, version);
    line!(out, "}}");
}

const IMPORTS: &str = "    use spinrpc_xdr::rpc::{self, TypedCall};\n";

fn args(model: &Model, procedure: &Procedure, lifetime: &str) -> String {
    let mut types = procedure.arguments.iter().map(|ty| used(model, ty, lifetime));
    match (types.next(), types.len()) {
        (None, _) => "()".to_owned(),
        (Some(one), 0) => one,
        (Some(first), _) => format!("({first}, {})", types.collect::<Vec<_>>().join(", ")),
    }
}

fn results(model: &Model, procedure: &Procedure, lifetime: &str) -> String {
    procedure.result.as_ref().map_or("()".to_owned(), |ty| used(model, ty, lifetime))
}

fn used(model: &Model, ty: &Ty, lifetime: &str) -> String {
    model.rust_at(ty, lifetime, "super::", "spinrpc_xdr::")
}

/// An enum of the procedures, for programs that count them, name them, or decide by them.
fn put_ids(out: &mut String, version: &Version) {
    let procedures = &version.procedures;
    line!(out, "\n    /// The procedures.\n    #[allow(clippy::enum_variant_names)]");
    line!(out, "    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]");
    line!(out, "    #[repr(u32)]\n    pub enum ProcedureId {{");
    for Procedure { name, rust, number, .. } in procedures {
        line!(out, "        /// `{name}`.\n        {rust} = {number},");
    }
    line!(out, "    }}\n\n    impl ProcedureId {{");
    line!(out, "        /// The procedure of this number, if there is one.");
    line!(out, "        pub const fn new(number: u32) -> Option<Self> {{");
    line!(out, "            match number {{");
    for Procedure { rust, number, .. } in procedures {
        line!(out, "                {number} => Some(Self::{rust}),");
    }
    line!(out, "                _ => None,\n            }}\n        }}\n");
    line!(
        out,
        "        /// Its name in the description.\n        pub const fn name(self) -> &'static str {{"
    );
    line!(out, "            match self {{");
    for Procedure { name, rust, .. } in procedures {
        line!(out, "                Self::{rust} => \"{name}\",");
    }
    line!(out, "            }}\n        }}\n    }}");
}

fn put_marker(out: &mut String, model: &Model, procedure: &Procedure) {
    let Procedure { name, rust, number, .. } = procedure;
    line!(out, "\n    /// Procedure {number}, `{name}`.\n    #[derive(Clone, Copy, Debug)]");
    line!(out, "    pub struct {rust};\n\n    impl rpc::Procedure for {rust} {{");
    line!(out, "        const NUMBER: u32 = {number};");
    line!(out, "        type Args<'a> = {};", args(model, procedure, "'a"));
    line!(out, "        type Results<'a> = {};\n    }}", results(model, procedure, "'a"));
}

/// Writes `head(parameters) tail` on one line, or with a line for each parameter.
fn put_signature(out: &mut String, head: &str, parameters: &[String], tail: &str) {
    let short = format!("        {head}({}){tail}", parameters.join(", "));
    if short.len() <= WIDTH {
        return line!(out, "{short}");
    }
    line!(out, "        {head}(");
    for parameter in parameters {
        line!(out, "            {parameter},");
    }
    line!(out, "        ){tail}");
}

fn put_service(out: &mut String, model: &Model, version: &Version) {
    line!(
        out,
        "\n    /// The procedures of this version. A procedure that is not implemented is answered"
    );
    line!(out, "    /// PROC_UNAVAIL; a procedure 0 without arguments and results, with success.");
    line!(out, "    pub trait Service {{");
    for (index, procedure) in version.procedures.iter().enumerate() {
        let Procedure { name, rust, method, number, arguments, result } = procedure;
        if index > 0 {
            out.push('\n');
        }
        line!(out, "        /// Answers procedure {number}, `{name}`.");
        let call = format!("call: TypedCall<'_, {rust}>");
        let mut parameters = vec!["&mut self".to_owned()];
        if !arguments.is_empty() {
            parameters.push(format!("args: {}", args(model, procedure, "'_")));
        }
        parameters.push(call);
        put_signature(out, &format!("fn {method}"), &parameters, " {");
        if !arguments.is_empty() {
            line!(out, "            let _ = args;");
        }
        match *number == 0 && arguments.is_empty() && result.is_none() {
            true => line!(out, "            call.reply(&());\n        }}"),
            false => line!(out, "            call.unavailable();\n        }}"),
        }
    }
    line!(out, "    }}");
}

fn put_dispatch(out: &mut String, version: &Version) {
    line!(out, "\n    /// Decodes `call` and has `service` answer it.");
    line!(out, "    pub fn dispatch<S: Service + ?Sized>(service: &mut S, call: rpc::Call<'_>) {{");
    line!(out, "        match call.procedure().0 {{");
    for Procedure { rust, method, number, arguments, .. } in &version.procedures {
        line!(out, "            {number} => {{");
        match arguments.is_empty() {
            true => {
                line!(
                    out,
                    "                if let Some(((), call)) = TypedCall::<{rust}>::accept(call) {{"
                );
                line!(out, "                    service.{method}(call);");
            }
            false => {
                let accept =
                    format!("if let Some((args, call)) = TypedCall::<{rust}>::accept(call) {{");
                line!(out, "                {accept}");
                line!(out, "                    service.{method}(args, call);");
            }
        }
        line!(out, "                }}\n            }}");
    }
    line!(out, "            _ => rpc::unavailable(call),\n        }}\n    }}");
    line!(out, "{SERVER}");
}

const SERVER: &str = "
    /// A service as an engine serves it.
    #[derive(Clone, Debug)]
    pub struct Server<S>(pub S);

    impl<S: Service> rpc::Service for Server<S> {
        fn call(&mut self, call: rpc::Call<'_>) {
            dispatch(&mut self.0, call);
        }
    }";

fn put_client(out: &mut String, model: &Model, version: &Version) {
    line!(out, "\n    /// Starts calls; their handler decodes the replies with `rpc::results`.");
    line!(out, "    #[derive(Clone, Debug)]\n    pub struct Client(pub rpc::Client);\n");
    line!(out, "    impl Client {{");
    for (index, procedure) in version.procedures.iter().enumerate() {
        let Procedure { name, rust, method, number, arguments, .. } = procedure;
        if index > 0 {
            out.push('\n');
        }
        line!(out, "        /// Starts a call of procedure {number}, `{name}`.\n        ///");
        line!(out, "        /// # Errors\n        /// `Backpressure`: nothing was sent.");
        let mut parameters =
            ["&self", "token: rpc::Token", "spec: &mut rpc::CallSpec"].map(str::to_owned).to_vec();
        if !arguments.is_empty() {
            parameters.push(format!("args: &{}", args(model, procedure, "'_")));
        }
        let tail = " -> Result<rpc::CallId, rpc::Backpressure> {";
        put_signature(out, &format!("pub fn {method}"), &parameters, tail);
        let given = if arguments.is_empty() { "&()" } else { "args" };
        line!(out, "            rpc::call::<{rust}>(&self.0, token, spec, {given})\n        }}");
    }
    line!(out, "    }}");
}

fn put_blocking(out: &mut String, model: &Model, version: &Version) {
    line!(out, "{BLOCKING}");
    for (index, procedure) in version.procedures.iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let Procedure { name, rust, method, number, arguments, .. } = procedure;
        line!(
            out,
            "        /// Calls procedure {number}, `{name}`, and gives the results to `take`."
        );
        line!(
            out,
            "        ///\n        /// # Errors\n        /// `CallError` says why there are no results."
        );
        let mut parameters = vec!["&mut self".to_owned()];
        if !arguments.is_empty() {
            parameters.push(format!("args: &{}", args(model, procedure, "'_")));
        }
        parameters.push(format!("take: impl FnOnce({}) -> T", results(model, procedure, "'_")));
        let tail = " -> Result<T, rpc::CallError> {";
        put_signature(out, &format!("pub fn {method}<T>"), &parameters, tail);
        let given = if arguments.is_empty() { "&()" } else { "args" };
        line!(out, "            let spec = &mut rpc::CallSpec::new();");
        line!(
            out,
            "            rpc::call_wait::<{rust}, T>(&mut self.0, spec, {given}, take)\n        }}"
        );
    }
    line!(out, "    }}");
}

fn put_handle(out: &mut String, model: &Model, version: &Version) {
    line!(out, "{HANDLE}");
    for (index, procedure) in version.procedures.iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let Procedure { name, rust, method, number, arguments, .. } = procedure;
        line!(out, "        /// Starts a call of procedure {number}, `{name}`.\n        ///");
        line!(out, "        /// # Errors\n        /// `Backpressure`: nothing was sent.");
        let mut parameters = vec!["&self".to_owned()];
        if !arguments.is_empty() {
            parameters.push(format!("args: &{}", args(model, procedure, "'_")));
        }
        let tail = format!(" -> Result<rpc::TypedPending<{rust}>, rpc::Backpressure> {{");
        put_signature(out, &format!("pub fn {method}"), &parameters, &tail);
        let given = if arguments.is_empty() { "&()" } else { "args" };
        line!(out, "            rpc::start::<{rust}>(&self.0, rpc::CallSpec::new(), {given})");
        line!(out, "        }}");
    }
    line!(out, "    }}");
}

const HANDLE: &str = "
    /// Starts calls from any thread. A pending call is a `Future` of its answer, and can be waited for. Calls with
    /// buffers or long results go by `rpc::start`.
    #[derive(Clone, Debug)]
    pub struct Handle(pub rpc::ClientHandle);

    impl Handle {";

const BLOCKING: &str = "
    /// Connects with the default configuration, for calls that wait.
    ///
    /// # Errors
    /// `ConnectError` says why there is no connection.
    pub fn connect(address: &str) -> Result<Blocking, rpc::ConnectError> {
        rpc::blocking::Client::connect(address, PROGRAM, VERSION).map(Blocking)
    }

    /// Calls and waits. Calls with buffers or long results go by `rpc::call_wait`.
    #[derive(Debug)]
    pub struct Blocking(pub rpc::blocking::Client);

    impl Blocking {";
