//! Resolves programs, versions and procedures.

use super::Resolver;
use crate::ast::{self, Name, Spec, Value};
use crate::error::Mistake;
use crate::model::{Procedure, Program, Ty, Version};
use crate::names;
use std::collections::BTreeSet;

/// Arguments of a procedure: tuples of so many have codecs.
const ARGUMENTS_MAX: usize = 8;

impl Resolver<'_> {
    pub(super) fn program(&self, program: &ast::Program) -> Result<Program, Mistake> {
        let versions = program.versions.iter().map(|version| self.version(version));
        let versions: Vec<Version> = versions.collect::<Result<_, _>>()?;
        distinct(&program.versions, |version| &version.name, &versions, |version| version.number)?;
        let number = self.program_number(&program.number)?;
        Ok(Program { name: program.name.text.clone(), number, versions })
    }

    fn version(&self, version: &ast::Version) -> Result<Version, Mistake> {
        let procedures = version.procedures.iter().map(|procedure| self.procedure(procedure));
        let procedures: Vec<Procedure> = procedures.collect::<Result<_, _>>()?;
        distinct(&version.procedures, |found| &found.name, &procedures, |found| found.number)?;
        let number = self.program_number(&version.number)?;
        let rust = names::snake(&version.name.text);
        Ok(Version { name: version.name.text.clone(), rust, number, procedures })
    }

    fn procedure(&self, procedure: &ast::Procedure) -> Result<Procedure, Mistake> {
        let name = &procedure.name;
        let arguments = procedure.arguments.iter().map(|spec| self.parameter(name, spec));
        let arguments: Vec<Ty> = arguments.collect::<Result<_, _>>()?;
        if arguments.len() > ARGUMENTS_MAX {
            let problem = format!("`{}` has more than {ARGUMENTS_MAX} arguments", name.text);
            return Err(Mistake::new(name.at.clone(), problem, "put them into a struct"));
        }
        let result =
            procedure.result.as_ref().map(|spec| self.parameter(name, spec)).transpose()?;
        Ok(Procedure {
            name: name.text.clone(),
            rust: names::camel(&name.text),
            method: names::snake(&name.text),
            number: self.program_number(&procedure.number)?,
            arguments,
            result,
        })
    }

    fn parameter(&self, procedure: &Name, spec: &Spec) -> Result<Ty, Mistake> {
        match spec {
            Spec::Basic(_) => self.item(spec),
            Spec::Named(_) => self.item(spec).map(|ty| match ty {
                Ty::Named(index) => self.model.use_of(index),
                other => other,
            }),
            Spec::Opaque | Spec::Text | Spec::Inline(_) => {
                let problem =
                    format!("`{}` takes or returns a type without a name", procedure.text);
                let remedy = "define it first: `typedef string name<255>;`";
                Err(Mistake::new(procedure.at.clone(), problem, remedy))
            }
        }
    }

    fn program_number(&self, value: &Value) -> Result<u32, Mistake> {
        let number = self.number(value)?;
        u32::try_from(number).map_err(|_| {
            let (Value::Number(_, at) | Value::Named(Name { at, .. })) = value;
            let problem = format!("{number} is not the number of a program, version or procedure");
            Mistake::new(at.clone(), problem, "it is between 0 and 4294967295")
        })
    }
}

/// No number is taken twice.
fn distinct<W, R>(
    written: &[W],
    name: impl Fn(&W) -> &Name,
    resolved: &[R],
    number: impl Fn(&R) -> u32,
) -> Result<(), Mistake> {
    let mut seen = BTreeSet::new();
    for (written, resolved) in written.iter().zip(resolved) {
        if !seen.insert(number(resolved)) {
            let name = name(written);
            let problem = format!("`{}` has the number of another one", name.text);
            return Err(Mistake::new(name.at.clone(), problem, "give it a number of its own"));
        }
    }
    Ok(())
}
