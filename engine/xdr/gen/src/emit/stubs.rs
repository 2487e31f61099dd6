//! The stubs of one version of a program: a module with markers of its procedures, a service trait of functions and one
//! of futures, and three clients. The module is a text with `{words}` that stand for values.

use super::WIDTH;
use crate::model::{Model, Procedure, Program, Ty, Version};

/// Words of a template with their values, which are names and types, and do not contain such words.
type Values = Vec<(&'static str, String)>;

pub(super) fn put(out: &mut String, model: &Model, program: &Program, version: &Version) {
    let procedures = version.procedures.iter();
    let procedures: Vec<_> = procedures.map(|found| (found, values(model, found))).collect();
    let lines = |template| procedures.iter().map(|(_, values)| filled(template, values)).collect();
    let methods = |template| joined(template, procedures.iter().map(|(_, values)| values));
    let values = vec![
        ("{asynchronous}", asynchronous(&procedures)),
        ("{program}", program.name.clone()),
        ("{program_number}", program.number.to_string()),
        ("{version}", version.name.clone()),
        ("{version_number}", version.number.to_string()),
        ("{module}", version.rust.clone()),
        ("{variants}", lines("        /// `{name}`.\n        {rust} = {number},\n")),
        ("{by_number}", lines("                {number} => Some(Self::{rust}),\n")),
        ("{names}", lines("                Self::{rust} => \"{name}\",\n")),
        ("{markers}", lines(MARKER)),
        ("{service}", methods(SERVICE)),
        ("{dispatch}", lines(DISPATCH)),
        ("{client}", methods(CLIENT)),
        ("{blocking}", methods(BLOCKING)),
        ("{handle}", methods(HANDLE)),
    ];
    out.push_str(&filled(MODULE, &values));
}

fn filled(template: &str, values: &Values) -> String {
    values.iter().fold(template.to_owned(), |text, (word, value)| text.replace(word, value))
}

fn joined<'v>(template: &str, procedures: impl Iterator<Item = &'v Values>) -> String {
    let methods = procedures.map(|values| on_one_line(filled(template, values)));
    methods.collect::<Vec<_>>().join("\n")
}

fn on_one_line(method: String) -> String {
    let parts = method.split_once("(\n");
    let parts = parts.and_then(|(head, rest)| Some((head, rest.split_once("\n        )")?)));
    let Some((head, (parameters, tail))) = parts else { return method };
    let parameters = parameters.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let parameters = parameters.trim_end_matches(',');
    let (begin, end) = (head.rsplit('\n').next(), tail.split('\n').next());
    let around: usize = begin.iter().chain(&end).map(|part| part.len()).sum();
    match around + "()".len() + parameters.len() <= WIDTH {
        true => format!("{head}({parameters}){tail}"),
        false => method,
    }
}

/// The words of a procedure. Some of them are empty for one without arguments.
fn values(model: &Model, procedure: &Procedure) -> Values {
    let Procedure { name, rust, method, number, arguments, result } = procedure;
    let results =
        |lifetime: &str| result.as_ref().map_or("()".to_owned(), |ty| used(model, ty, lifetime));
    let args = args(model, procedure, "'_");
    let is_null = *number == 0 && arguments.is_empty() && result.is_none();
    let select = |with: &str, without: &str| match arguments.is_empty() {
        true => without.to_owned(),
        false => with.to_owned(),
    };
    let parameter = |ty: &str| select(&format!("            args: {ty},\n"), "");
    vec![
        // Chains of two calls would be broken by the length of the name, at a width that settings of rustfmt choose.
        (
            "{decoded}",
            select(
                "let args = {kept};",
                "let mut args = {kept};\n                    args.decode()?;",
            ),
        ),
        ("{kept}", format!("call.args::<{rust}>()")),
        ("{by_value}", parameter(&args)),
        ("{by_reference}", parameter(&format!("&{args}"))),
        ("{by_future}", parameter(&format!("rpc::TypedArgs<{rust}>"))),
        ("{unused}", select("            let _ = args;\n", "")),
        ("{accepted}", select("args", "()")),
        ("{passed}", select("args, ", "")),
        ("{only}", select("args", "")),
        ("{given}", select("args", "&()")),
        (
            "{answer}",
            if is_null { "call.reply(&())" } else { "rpc::unavailable(call.into_inner())" }
                .to_owned(),
        ),
        ("{args}", self::args(model, procedure, "'a")),
        ("{results}", results("'a")),
        ("{lent_results}", results("'_")),
        ("{name}", name.clone()),
        ("{rust}", rust.clone()),
        ("{method}", method.clone()),
        ("{number}", number.to_string()),
    ]
}

fn args(model: &Model, procedure: &Procedure, lifetime: &str) -> String {
    let mut types = procedure.arguments.iter().map(|ty| used(model, ty, lifetime));
    match (types.next(), types.len()) {
        (None, _) => "()".to_owned(),
        (Some(one), 0) => one,
        (Some(first), _) => format!("({first}, {})", types.collect::<Vec<_>>().join(", ")),
    }
}

fn used(model: &Model, ty: &Ty, lifetime: &str) -> String {
    model.rust_at(ty, lifetime, "super::", "spinrpc_xdr::")
}

/// The stubs for futures, if there are any: the engine answers procedure 0 of an async service, without results.
fn asynchronous(procedures: &[(&Procedure, Values)]) -> String {
    let (null, others): (Vec<_>, Vec<_>) =
        procedures.iter().partition(|(found, _)| found.number == 0);
    let has_values = |null: &Procedure| !null.arguments.is_empty() || null.result.is_some();
    if others.is_empty() || null.iter().any(|(found, _)| has_values(found)) {
        return String::new();
    }
    let calls = others.iter().map(|(_, values)| filled(ASYNC_CALL, values)).collect();
    let methods = joined(ASYNC_SERVICE, others.iter().map(|(_, values)| values));
    filled(ASYNC, &vec![("{methods}", methods), ("{calls}", calls)])
}

const MODULE: &str = "
/// Version {version_number} of program `{program}` ({program_number}): `{version}`.
pub mod {module} {
    use spinrpc_xdr::rpc::{self, TypedCall};

    /// Program number.
    pub const PROGRAM: rpc::Program = rpc::Program({program_number});

    /// Version number.
    pub const VERSION: rpc::Version = rpc::Version({version_number});

    /// The procedures.
    #[allow(clippy::enum_variant_names)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[repr(u32)]
    pub enum ProcedureId {
{variants}    }

    impl ProcedureId {
        /// The procedure of this number, if there is one.
        pub const fn new(number: u32) -> Option<Self> {
            match number {
{by_number}                _ => None,
            }
        }

        /// Its name in the description.
        pub const fn name(self) -> &'static str {
            match self {
{names}            }
        }
    }
{markers}
    /// The procedures of this version. A procedure that is not implemented is answered
    /// PROC_UNAVAIL; a procedure 0 without arguments and results, with success.
    pub trait Service {
{service}    }

    /// Decodes `call` and has `service` answer it.
    pub fn dispatch<S: Service + ?Sized>(service: &mut S, call: rpc::Call<'_>) {
        match call.procedure().0 {
{dispatch}            _ => rpc::unavailable(call),
        }
    }

    /// A service as an engine serves it.
    #[derive(Clone, Debug)]
    pub struct Server<S>(pub S);

    impl<S: Service> rpc::Service for Server<S> {
        fn call(&mut self, call: rpc::Call<'_>) {
            dispatch(&mut self.0, call);
        }
    }
{asynchronous}
    /// Starts calls; their handler decodes the replies with `rpc::results`.
    #[derive(Clone, Debug)]
    pub struct Client(pub rpc::Client);

    impl Client {
{client}    }

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

    impl Blocking {
{blocking}    }

    /// Starts calls from any thread. A pending call is a `Future` of its answer, and can be waited for. Calls with
    /// buffers or long results go by `rpc::start`.
    #[derive(Clone, Debug)]
    pub struct Handle(pub rpc::ClientHandle);

    impl Handle {
{handle}    }
}
";

const MARKER: &str = "
    /// Procedure {number}, `{name}`.
    #[derive(Clone, Copy, Debug)]
    pub struct {rust};

    impl rpc::Procedure for {rust} {
        const NUMBER: u32 = {number};
        type Args<'a> = {args};
        type Results<'a> = {results};
    }
";

const SERVICE: &str = "        /// Answers procedure {number}, `{name}`.
        fn {method}(
            &mut self,
{by_value}            call: TypedCall<'_, {rust}>,
        ) {
{unused}            {answer};
        }
";

const DISPATCH: &str = "            {number} => {
                if let Some(({accepted}, call)) = TypedCall::<{rust}>::accept(call) {
                    service.{method}({passed}call);
                }
            }
";

const ASYNC: &str = "
    /// The procedures of this version as async functions, each `async fn name(&self, args: rpc::TypedArgs<Name>)`. A
    /// procedure that is not implemented is answered PROC_UNAVAIL; procedure 0, with success. A handler gets no identity,
    /// credential or connection of its caller: access control needs `spinrpc::AsyncService` or [`Service`].
    pub trait AsyncService: 'static {
{methods}    }

    /// A service of async functions, for `spinrpc::async_service`.
    #[derive(Clone, Debug)]
    pub struct AsyncServer<S>(pub S);

    impl<S: AsyncService> rpc::AsyncService for AsyncServer<S> {
        type Request = rpc::KeptCall;
        type Reply = rpc::AnyResults;

        fn request(&self, call: &mut rpc::Call<'_>) -> Result<rpc::KeptCall, rpc::AcceptStatus> {
            Ok(rpc::KeptCall::new(call))
        }

        async fn call(
            self: std::rc::Rc<Self>,
            call: rpc::KeptCall,
        ) -> Result<rpc::AnyResults, rpc::AcceptStatus> {
            let service = &self.0;
            match call.procedure {
{calls}                _ => Err(rpc::AcceptStatus::ProcUnavail),
            }
        }
    }
";

const ASYNC_SERVICE: &str = "        /// Answers procedure {number}, `{name}`.
        fn {method}(
            &self,
{by_future}        ) -> impl core::future::Future<Output = rpc::Answered<{rust}>> {
{unused}            core::future::ready(Err(rpc::AcceptStatus::ProcUnavail))
        }
";

const ASYNC_CALL: &str = "                {number} => {
                    {decoded}
                    let answered = service.{method}({only});
                    Ok(answered.await?.into_inner())
                }
";

const CLIENT: &str = "        /// Starts a call of procedure {number}, `{name}`.
        ///
        /// # Errors
        /// `Backpressure`: nothing was sent.
        pub fn {method}(
            &self,
            token: rpc::Token,
            spec: &mut rpc::CallSpec,
{by_reference}        ) -> Result<rpc::CallId, rpc::Backpressure> {
            rpc::call::<{rust}>(&self.0, token, spec, {given})
        }
";

const BLOCKING: &str =
    "        /// Calls procedure {number}, `{name}`, and gives the results to `take`.
        ///
        /// # Errors
        /// `CallError` says why there are no results.
        pub fn {method}<T>(
            &mut self,
{by_reference}            take: impl FnOnce({lent_results}) -> T,
        ) -> Result<T, rpc::CallError> {
            let spec = &mut rpc::CallSpec::new();
            rpc::call_wait::<{rust}, T>(&mut self.0, spec, {given}, take)
        }
";

const HANDLE: &str = "        /// Starts a call of procedure {number}, `{name}`.
        ///
        /// # Errors
        /// `Backpressure`: nothing was sent.
        pub fn {method}(
            &self,
{by_reference}        ) -> Result<rpc::TypedPending<{rust}>, rpc::Backpressure> {
            rpc::start::<{rust}>(&self.0, rpc::CallSpec::new(), {given})
        }
";
