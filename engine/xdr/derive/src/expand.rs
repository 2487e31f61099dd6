//! The code of a codec.

use crate::input::{Arm, Input, Shape};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Ident, Type};

pub(crate) fn expand(input: &Input<'_>) -> TokenStream {
    let name = input.name;
    let Parts { plain, fixed, longest, decode, encode } = match &input.shape {
        Shape::Struct(fields) => structure(fields),
        Shape::Enum(_) => enumeration(name),
        Shape::Union { switch, arms, default } => union(switch, arms, default.as_deref()),
    };
    let (own, any) = match input.lifetime {
        Some(lifetime) => (quote!(<#lifetime>), quote!(<'_>)),
        None => (quote!(), quote!()),
    };
    let (lifetime, generics) = match input.lifetime {
        Some(lifetime) => (quote!(#lifetime), quote!(<#lifetime>)),
        None => (quote!('a), quote!(<'a>)),
    };
    // Else a list's loop would call a function for each of its nodes, with the writer in memory.
    let always = is_short(&input.shape).then(|| quote!((always)));
    let discriminant = match &input.shape {
        Shape::Enum(variants) => Some(discriminant(name, variants)),
        _ => None,
    };
    quote! {
        #[automatically_derived]
        impl #generics ::spinrpc_xdr::Decode<#lifetime> for #name #own {
            const PLAIN_BYTES: ::core::option::Option<usize> = #plain;
            const FIXED_BYTES: ::core::option::Option<usize> = #fixed;
            const BYTES_MAX: ::core::option::Option<usize> = #longest;

            #[inline #always]
            fn decode<__S: ::spinrpc_xdr::Source<#lifetime>>(
                from: &mut __S,
            ) -> ::core::result::Result<Self, ::spinrpc_xdr::DecodeError> {
                #decode
            }
        }

        #[automatically_derived]
        impl ::spinrpc_xdr::Encode for #name #any {
            #[inline #always]
            fn encode(&self, to: &mut ::spinrpc_xdr::Encoder<'_>) {
                #encode
            }
        }

        #discriminant
    }
}

/// Structs of few fields, which are written where they are used.
fn is_short(shape: &Shape<'_>) -> bool {
    const FIELDS_MAX: usize = 8;
    matches!(shape, Shape::Struct(fields) if fields.len() <= FIELDS_MAX)
}

struct Parts {
    plain: TokenStream,
    fixed: TokenStream,
    longest: TokenStream,
    decode: TokenStream,
    encode: TokenStream,
}

fn structure(fields: &[(&Ident, &Type)]) -> Parts {
    let names: Vec<_> = fields.iter().map(|(name, _)| name).collect();
    let types: Vec<_> = fields.iter().map(|(_, ty)| ty).collect();
    let sum = |length: &str| {
        let length = format_ident!("{length}");
        quote!(::spinrpc_xdr::sum(&[#(<#types as ::spinrpc_xdr::Decode<'_>>::#length),*]))
    };
    let value = quote!(Self { #(#names: ::spinrpc_xdr::Decode::decode(from)?,)* });
    Parts {
        plain: sum("PLAIN_BYTES"),
        fixed: sum("FIXED_BYTES"),
        longest: sum("BYTES_MAX"),
        decode: quote! {
            if let ::core::option::Option::Some(length) =
                <Self as ::spinrpc_xdr::Decode<'_>>::FIXED_BYTES
            {
                let mut words = ::spinrpc_xdr::Source::words(from, length)?;
                let from = &mut words;
                return ::core::result::Result::Ok(#value);
            }
            ::core::result::Result::Ok(#value)
        },
        encode: quote! { #(::spinrpc_xdr::Encode::encode(&self.#names, to);)* },
    }
}

fn enumeration(name: &Ident) -> Parts {
    Parts {
        plain: quote!(::core::option::Option::None),
        fixed: quote!(::core::option::Option::Some(4)),
        longest: quote!(::core::option::Option::Some(4)),
        decode: quote! {
            let at = ::spinrpc_xdr::Source::position(from);
            let word = ::spinrpc_xdr::Source::u32(from)?;
            <#name as ::spinrpc_xdr::Discriminant>::from_word(word, at)
        },
        encode: quote! { to.i32(*self as i32); },
    }
}

fn discriminant(name: &Ident, variants: &[&Ident]) -> TokenStream {
    let values: Vec<_> = constants(variants.len());
    quote! {
        #[automatically_derived]
        impl ::spinrpc_xdr::Discriminant for #name {
            #[inline]
            fn from_word(
                word: u32,
                at: usize,
            ) -> ::core::result::Result<Self, ::spinrpc_xdr::DecodeError> {
                #(const #values: u32 = #name::#variants as u32;)*
                match word {
                    #(#values => ::core::result::Result::Ok(#name::#variants),)*
                    value => ::core::result::Result::Err(
                        ::spinrpc_xdr::DecodeError::BadEnum { at, value },
                    ),
                }
            }
        }
    }
}

/// Names of constants, which can stand in patterns.
fn constants(count: usize) -> Vec<Ident> {
    (0..count).map(|index| format_ident!("VALUE_{}", index)).collect()
}

/// The word of the discriminant is compared with the cases; only a word without a case is made a
/// discriminant.
fn union(switch: &Type, arms: &[Arm<'_>], default: Option<&Arm<'_>>) -> Parts {
    let values = constants(arms.len());
    let bodies = arms.iter().chain(default).filter_map(|arm| arm.body);
    let cases = arms.iter().map(|arm| &arm.case);
    let decoded = arms.iter().map(|Arm { variant, body, .. }| match body.is_some() {
        true => quote!(Self::#variant(::spinrpc_xdr::Decode::decode(from)?)),
        false => quote!(Self::#variant),
    });
    let other = match default {
        Some(Arm { variant, body: Some(_), .. }) => {
            quote!(Self::#variant(other, ::spinrpc_xdr::Decode::decode(from)?))
        }
        Some(Arm { variant, .. }) => quote!(Self::#variant(other)),
        None => quote! {{
            let _ = other;
            let error = ::spinrpc_xdr::DecodeError::BadEnum { at, value: word };
            return ::core::result::Result::Err(error);
        }},
    };
    let encoded = arms.iter().chain(default).map(|arm| encode_arm(switch, arm));
    Parts {
        plain: quote!(::core::option::Option::None),
        fixed: quote!(::core::option::Option::None),
        longest: quote! {
            ::spinrpc_xdr::sum(&[
                ::core::option::Option::Some(4),
                ::spinrpc_xdr::longest(&[#(<#bodies as ::spinrpc_xdr::Decode<'_>>::BYTES_MAX),*]),
            ])
        },
        decode: quote! {
            #(const #values: u32 = { let case: #switch = #cases; case as u32 };)*
            let at = ::spinrpc_xdr::Source::position(from);
            let word = ::spinrpc_xdr::Source::u32(from)?;
            ::core::result::Result::Ok(match word {
                #(#values => #decoded,)*
                _ => {
                    let other = <#switch as ::spinrpc_xdr::Discriminant>::from_word(word, at)?;
                    #other
                }
            })
        },
        encode: quote! { match self { #(#encoded)* } },
    }
}

fn encode_arm(switch: &Type, arm: &Arm<'_>) -> TokenStream {
    let Arm { variant, case, body } = arm;
    let has_body = body.is_some();
    let body = body.map(|_| quote!(::spinrpc_xdr::Encode::encode(body, to);));
    let (pattern, discriminant) = match (case, has_body) {
        (Some(case), true) => (quote!((body)), quote!({ let case: #switch = #case; case })),
        (Some(case), false) => (quote!(), quote!({ let case: #switch = #case; case })),
        (None, true) => (quote!((discriminant, body)), quote!(*discriminant)),
        (None, false) => (quote!((discriminant)), quote!(*discriminant)),
    };
    quote! {
        Self::#variant #pattern => {
            ::spinrpc_xdr::Encode::encode(&#discriminant, to);
            #body
        }
    }
}
