//! The type that the macro stands on, and its attributes.

use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DataEnum, DeriveInput, Error, Expr, Fields, Ident, Lifetime, Result, Type,
};

pub(crate) struct Input<'i> {
    pub(crate) name: &'i Ident,
    pub(crate) lifetime: Option<&'i Lifetime>,
    pub(crate) shape: Shape<'i>,
}

pub(crate) enum Shape<'i> {
    Struct(Vec<(&'i Ident, &'i Type)>),
    Enum(Vec<&'i Ident>),
    Union { switch: Box<Type>, arms: Vec<Arm<'i>>, default: Option<Box<Arm<'i>>> },
}

pub(crate) struct Arm<'i> {
    pub(crate) variant: &'i Ident,
    /// The case; `None` for the default arm.
    pub(crate) case: Option<Expr>,
    /// Type of its data besides the discriminant.
    pub(crate) body: Option<&'i Type>,
}

#[derive(Default)]
struct Attributes {
    switch: Option<Type>,
    case: Option<Expr>,
    is_default: bool,
}

pub(crate) fn parse(item: &DeriveInput) -> Result<Input<'_>> {
    let mut generics = item.generics.params.iter();
    let lifetime = match (generics.next(), generics.next()) {
        (None, _) => None,
        (Some(syn::GenericParam::Lifetime(lifetime)), None) => Some(&lifetime.lifetime),
        (Some(other), _) => {
            return Err(Error::new(other.span(), "Xdr takes one lifetime and no other parameters"));
        }
    };
    let switch = attributes(&item.attrs)?.switch;
    let shape = match (&item.data, switch) {
        (Data::Enum(data), Some(switch)) => union(data, switch)?,
        (Data::Enum(data), None) => plain_enum(data)?,
        (Data::Struct(data), None) => Shape::Struct(named(&data.fields)?),
        _ => return Err(Error::new(item.ident.span(), "Xdr is for structs and enums")),
    };
    Ok(Input { name: &item.ident, lifetime, shape })
}

fn attributes(attributes: &[Attribute]) -> Result<Attributes> {
    let mut found = Attributes::default();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("xdr")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("switch") {
                found.switch = Some(meta.value()?.parse()?);
            } else if meta.path.is_ident("case") {
                found.case = Some(constant(meta.value()?.parse()?)?);
            } else if meta.path.is_ident("default") {
                found.is_default = true;
            } else {
                return Err(meta.error("there are `switch`, `case` and `default`"));
            }
            Ok(())
        })?;
    }
    Ok(found)
}

/// A case is written as a pattern and as an expression.
fn constant(case: Expr) -> Result<Expr> {
    let is_both = match &case {
        Expr::Lit(_) | Expr::Path(_) => true,
        Expr::Unary(unary) => matches!(*unary.expr, Expr::Lit(_)),
        _ => false,
    };
    if is_both {
        Ok(case)
    } else {
        Err(Error::new(case.span(), "a literal or the path of a constant"))
    }
}

fn named(fields: &Fields) -> Result<Vec<(&Ident, &Type)>> {
    let Fields::Named(fields) = fields else {
        return Err(Error::new(fields.span(), "Xdr needs fields with names"));
    };
    Ok(fields.named.iter().filter_map(|field| Some((field.ident.as_ref()?, &field.ty))).collect())
}

fn plain_enum(data: &DataEnum) -> Result<Shape<'_>> {
    let variants = data.variants.iter().map(|variant| match &variant.fields {
        Fields::Unit => Ok(&variant.ident),
        other => Err(Error::new(other.span(), "a union needs #[xdr(switch = TYPE)]")),
    });
    Ok(Shape::Enum(variants.collect::<Result<_>>()?))
}

fn union(data: &DataEnum, switch: Type) -> Result<Shape<'_>> {
    let (mut arms, mut default) = (Vec::new(), None);
    for variant in &data.variants {
        let Attributes { case, is_default, .. } = attributes(&variant.attrs)?;
        let (fields, last) = match &variant.fields {
            Fields::Unit => (0, None),
            Fields::Unnamed(fields) => (fields.unnamed.len(), fields.unnamed.last()),
            Fields::Named(_) => {
                return Err(Error::new(variant.span(), "fields here have no names"));
            }
        };
        let variant_name = &variant.ident;
        match (case, is_default, fields) {
            (Some(case), false, 0 | 1) => {
                let body = last.map(|field| &field.ty);
                arms.push(Arm { variant: variant_name, case: Some(case), body });
            }
            (None, true, 1 | 2) if default.is_none() => {
                let body = last.filter(|_| fields == 2).map(|field| &field.ty);
                default = Some(Box::new(Arm { variant: variant_name, case: None, body }));
            }
            _ => {
                let message = "#[xdr(case = VALUE)] with a field at most, or once #[xdr(default)] with the \
                               discriminant and a field at most";
                return Err(Error::new(variant.span(), message));
            }
        }
    }
    Ok(Shape::Union { switch: Box::new(switch), arms, default })
}
