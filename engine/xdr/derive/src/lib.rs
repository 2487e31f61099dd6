//! `#[derive(Xdr)]`, which `spinrpc-xdr` exports: the codec of a struct, an enum or a union. Generated
//! code uses it, too.

#![forbid(unsafe_code)]

mod expand;
mod input;

use proc_macro::TokenStream;

/// Derives `Decode` and `Encode`.
///
/// * A struct with named fields is coded field by field.
/// * An enum without data is an XDR enum: its variants have the values of their discriminants. It must be
///   `Copy`.
/// * An enum with `#[xdr(switch = TYPE)]` is a union: each variant has `#[xdr(case = VALUE)]` and no
///   field, or one; the variant with `#[xdr(default)]` has the discriminant as its first field, and
///   possibly one more.
///
/// A type has at most one lifetime, that of the message, and no type parameters.
#[proc_macro_derive(Xdr, attributes(xdr))]
pub fn derive_xdr(item: TokenStream) -> TokenStream {
    let item = syn::parse_macro_input!(item as syn::DeriveInput);
    let expanded = input::parse(&item).map(|parsed| expand::expand(&parsed));
    expanded.unwrap_or_else(|error| error.to_compile_error()).into()
}
