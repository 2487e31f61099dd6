//! Resolves programs, versions and procedures.

use super::{Number, Resolver};
use crate::ast::{self, Name, Spec, Value};
use crate::error::Mistake;
use crate::model::{Bound, Procedure, Program, Ty, Version};
use crate::names::{self, Scope};
use std::collections::BTreeSet;

/// Names of a version's module that its procedures cannot have.
const RESERVED: &str = "AsyncServer AsyncService Blocking Client Err FnOnce Handle None Ok Option \
    PROGRAM ProcedureId Result S Server Service Sized Some T TypedCall VERSION";

/// Arguments of a procedure: tuples of so many have codecs.
const ARGUMENTS_MAX: usize = 8;

impl Resolver<'_> {
    /// The names of a program, its versions and procedures are constants.
    pub(super) fn declare_program(&mut self, program: &ast::Program) {
        let versions = program.versions.iter();
        let procedures = versions.clone().flat_map(|version| &version.procedures);
        let procedures = procedures.map(|found| (&found.name, &found.number));
        let versions = versions.map(|found| (&found.name, &found.number));
        for (name, value) in procedures.chain(versions).chain([(&program.name, &program.number)]) {
            if let Ok(value) = self.number(value) {
                let number = Number { value, rust: None };
                self.numbers.entry(name.text.clone()).or_insert(number);
            }
        }
    }

    pub(super) fn program(&mut self, program: &ast::Program) -> Result<Program, Mistake> {
        let versions = program.versions.iter().map(|version| self.version(version));
        let versions: Vec<Version> = versions.collect::<Result<_, _>>()?;
        let names = program.versions.iter().map(|version| &version.name);
        distinct(names.zip(versions.iter().map(|version| version.number)))?;
        let number = self.program_number(&program.number)?;
        Ok(Program { name: program.name.text.clone(), number, versions })
    }

    fn version(&mut self, version: &ast::Version) -> Result<Version, Mistake> {
        let procedures = version.procedures.iter().map(|procedure| self.procedure(procedure));
        let mut procedures: Vec<Procedure> = procedures.collect::<Result<_, _>>()?;
        let (mut markers, mut methods) = (Scope::new(RESERVED), Scope::default());
        for Procedure { rust, method, .. } in &mut procedures {
            *rust = markers.take(std::mem::take(rust));
            *method = methods.take(std::mem::take(method));
        }
        let names = version.procedures.iter().map(|procedure| &procedure.name);
        distinct(names.zip(procedures.iter().map(|procedure| procedure.number)))?;
        let number = self.program_number(&version.number)?;
        let rust = self.module_names.take(names::snake(&version.name.text));
        Ok(Version { name: version.name.text.clone(), rust, number, procedures })
    }

    fn procedure(&self, procedure: &ast::Procedure) -> Result<Procedure, Mistake> {
        let name = &procedure.name;
        let arguments = procedure.arguments.iter().map(|spec| self.parameter(name, spec));
        let arguments: Vec<Ty> = arguments.collect::<Result<_, _>>()?;
        if arguments.len() > ARGUMENTS_MAX {
            let problem = format!("`{}` has more than {ARGUMENTS_MAX} arguments", name.text);
            return Err(Mistake::new(name.at, problem, "put them into a struct"));
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
            Spec::Text => Ok(Ty::Text(Bound::NONE)),
            Spec::Opaque | Spec::Inline(_) => {
                let problem =
                    format!("`{}` takes or returns a type without a name", procedure.text);
                let remedy = "define it first: `typedef opaque data<255>;`";
                Err(Mistake::new(procedure.at, problem, remedy))
            }
        }
    }

    fn program_number(&self, value: &Value) -> Result<u32, Mistake> {
        let number = self.number(value)?;
        u32::try_from(number).map_err(|_| {
            let problem = format!("{number} is not the number of a program, version or procedure");
            Mistake::new(value.at(), problem, "it is between 0 and 4294967295")
        })
    }
}

fn distinct<'n>(mut numbers: impl Iterator<Item = (&'n Name, u32)>) -> Result<(), Mistake> {
    let mut seen = BTreeSet::new();
    match numbers.find(|(_, number)| !seen.insert(*number)) {
        None => Ok(()),
        Some((name, _)) => {
            let problem = format!("`{}` has the number of another one", name.text);
            Err(Mistake::new(name.at, problem, "give it a number of its own"))
        }
    }
}
