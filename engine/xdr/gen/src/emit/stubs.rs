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

const MODULE: &str = include_str!("stubs/module.txt");
const MARKER: &str = include_str!("stubs/marker.txt");
const SERVICE: &str = include_str!("stubs/service.txt");
const DISPATCH: &str = include_str!("stubs/dispatch.txt");
const ASYNC: &str = include_str!("stubs/async.txt");
const ASYNC_SERVICE: &str = include_str!("stubs/async_service.txt");
const ASYNC_CALL: &str = include_str!("stubs/async_call.txt");
const CLIENT: &str = include_str!("stubs/client.txt");
const BLOCKING: &str = include_str!("stubs/blocking.txt");
const HANDLE: &str = include_str!("stubs/handle.txt");
