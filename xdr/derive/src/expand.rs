//! The code of a codec.

use crate::input::{Arm, Input, Shape};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Ident, Type};

/// Both impls, and that of `Discriminant` for an enum.
pub(crate) fn expand(input: &Input<'_>) -> TokenStream {
    let name = input.name;
    let Parts { plain, decode, encode } = match &input.shape {
        Shape::Struct(fields) => structure(fields),
        Shape::Enum(variants) => enumeration(name, variants),
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
    let discriminant = matches!(input.shape, Shape::Enum(_)).then(|| discriminant(name));
    quote! {
        #[automatically_derived]
        impl #generics ::spinrpc_xdr::Decode<#lifetime> for #name #own {
            const PLAIN_BYTES: ::core::option::Option<usize> = #plain;

            #[inline]
            fn decode(
                from: &mut ::spinrpc_xdr::Decoder<#lifetime>,
            ) -> ::core::result::Result<Self, ::spinrpc_xdr::DecodeError> {
                #decode
            }
        }

        #[automatically_derived]
        impl ::spinrpc_xdr::Encode for #name #any {
            #[inline]
            fn encode(&self, to: &mut ::spinrpc_xdr::Encoder<'_>) {
                #encode
            }
        }

        #discriminant
    }
}

/// Bodies of the codec, which differ between the three forms.
struct Parts {
    plain: TokenStream,
    decode: TokenStream,
    encode: TokenStream,
}

fn structure(fields: &[(&Ident, &Type)]) -> Parts {
    let names: Vec<_> = fields.iter().map(|(name, _)| name).collect();
    let types: Vec<_> = fields.iter().map(|(_, ty)| ty).collect();
    Parts {
        plain: quote! {
            ::spinrpc_xdr::sum(&[#(<#types as ::spinrpc_xdr::Decode<'_>>::PLAIN_BYTES),*])
        },
        decode: quote! {
            ::core::result::Result::Ok(Self {
                #(#names: ::spinrpc_xdr::Decode::decode(from)?,)*
            })
        },
        encode: quote! { #(::spinrpc_xdr::Encode::encode(&self.#names, to);)* },
    }
}

fn enumeration(name: &Ident, variants: &[&Ident]) -> Parts {
    let values: Vec<_> =
        (0..variants.len()).map(|index| format_ident!("VALUE_{}", index)).collect();
    Parts {
        plain: quote!(::core::option::Option::None),
        decode: quote! {
            #(const #values: i32 = #name::#variants as i32;)*
            let at = from.position();
            match from.i32()? {
                #(#values => ::core::result::Result::Ok(Self::#variants),)*
                other => {
                    let value = other.cast_unsigned();
                    ::core::result::Result::Err(::spinrpc_xdr::DecodeError::BadEnum { at, value })
                }
            }
        },
        encode: quote! { to.i32(*self as i32); },
    }
}

fn discriminant(name: &Ident) -> TokenStream {
    quote! {
        #[automatically_derived]
        impl ::spinrpc_xdr::Discriminant for #name {
            #[inline]
            fn word(self) -> u32 {
                (self as i32).cast_unsigned()
            }
        }
    }
}

fn union(switch: &Type, arms: &[Arm<'_>], default: Option<&Arm<'_>>) -> Parts {
    let decoded = arms.iter().map(|Arm { variant, case, has_body }| match has_body {
        true => quote!(#case => Self::#variant(::spinrpc_xdr::Decode::decode(from)?),),
        false => quote!(#case => Self::#variant,),
    });
    let other = match default {
        Some(Arm { variant, has_body: true, .. }) => {
            quote!(other => Self::#variant(other, ::spinrpc_xdr::Decode::decode(from)?),)
        }
        Some(Arm { variant, .. }) => quote!(other => Self::#variant(other),),
        None => quote! {
            other => {
                let value = ::spinrpc_xdr::Discriminant::word(other);
                return ::core::result::Result::Err(::spinrpc_xdr::DecodeError::BadEnum { at, value });
            }
        },
    };
    let encoded = arms.iter().chain(default).map(|arm| encode_arm(switch, arm));
    Parts {
        plain: quote!(::core::option::Option::None),
        decode: quote! {
            let at = from.position();
            let _ = at;
            let discriminant = <#switch as ::spinrpc_xdr::Decode<'_>>::decode(from)?;
            #[allow(unreachable_patterns)]
            ::core::result::Result::Ok(match discriminant {
                #(#decoded)*
                #other
            })
        },
        encode: quote! { match self { #(#encoded)* } },
    }
}

fn encode_arm(switch: &Type, arm: &Arm<'_>) -> TokenStream {
    let Arm { variant, case, has_body } = arm;
    let body = has_body.then(|| quote!(::spinrpc_xdr::Encode::encode(body, to);));
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
