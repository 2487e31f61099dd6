//! Types and constants that need no definition: those of the headers of C that each header by rpcgen includes. A definition in
//! the description comes before them.

use crate::ast::Basic;
use crate::model::{Bound, Ty};

pub(super) fn ty(name: &str) -> Option<Ty> {
    Some(Ty::Basic(match name {
        "int8_t" => Basic::Char,
        "u_char" | "uint8_t" | "u_int8_t" => Basic::UnsignedChar,
        "int16_t" => Basic::Short,
        "u_short" | "uint16_t" | "u_int16_t" => Basic::UnsignedShort,
        "int32_t" => Basic::Int,
        "u_int" | "u_long" | "uint32_t" | "u_int32_t" => Basic::UnsignedInt,
        "rpcprog_t" | "rpcvers_t" | "rpcproc_t" => Basic::UnsignedInt,
        "int64_t" | "quad_t" => Basic::Hyper,
        "uint64_t" | "u_int64_t" | "u_quad_t" => Basic::UnsignedHyper,
        "des_block" => return Some(Ty::FixedOpaque(Bound { value: 8, constant: None })),
        "netobj" => return Some(Ty::Opaque(Bound { value: 1024, constant: None })),
        _ => return None,
    }))
}

pub(super) fn number(name: &str) -> Option<i128> {
    Some(match name {
        "AUTH_NONE" | "AUTH_NULL" => 0,
        "AUTH_SYS" | "AUTH_UNIX" => 1,
        "AUTH_SHORT" => 2,
        "AUTH_DH" | "AUTH_DES" => 3,
        "RPCSEC_GSS" => 6,
        "MAXNETNAMELEN" => 255,
        _ => return None,
    })
}
