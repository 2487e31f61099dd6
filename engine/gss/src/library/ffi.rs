//! What is called of MIT's libraries, declared by hand: thirteen functions of the GSS-API and four of Kerberos, which
//! have had these types since krb5 1.11 (2012). A generated binding would need libclang wherever the crate is built.
//!
//! `tests/kerberos/declarations.c` has the compiler of the C headers compare each line of this.
#![allow(unsafe_code, reason = "declarations of C functions")]

use core::ffi::{c_char, c_int, c_void};

/// `OM_uint32`.
pub(super) type Status = u32;
/// `gss_name_t`.
pub(super) type NameHandle = *mut c_void;
/// `gss_cred_id_t`.
pub(super) type CredentialHandle = *mut c_void;
/// `gss_ctx_id_t`.
pub(super) type ContextHandle = *mut c_void;

/// `gss_buffer_desc`.
#[repr(C)]
pub(super) struct Buffer {
    pub(super) length: usize,
    pub(super) value: *mut c_void,
}

/// `gss_OID_desc`: the content of a DER object identifier.
#[repr(C)]
pub(super) struct Oid {
    pub(super) length: u32,
    pub(super) elements: *mut c_void,
}

/// `gss_OID_set_desc`.
#[repr(C)]
pub(super) struct OidSet {
    pub(super) count: usize,
    pub(super) elements: *mut Oid,
}

/// `gss_key_value_element_desc`.
#[repr(C)]
pub(super) struct KeyValue {
    pub(super) key: *const c_char,
    pub(super) value: *const c_char,
}

/// `gss_key_value_set_desc`.
#[repr(C)]
pub(super) struct KeyValueSet {
    pub(super) count: u32,
    pub(super) elements: *mut KeyValue,
}

/// `gss_krb5_lucid_key_t`.
#[repr(C)]
pub(super) struct LucidKey {
    pub(super) enctype: u32,
    pub(super) length: u32,
    pub(super) data: *mut c_void,
}

/// `gss_krb5_rfc1964_keydata_t`: keys of the old tokens, which are not used.
#[repr(C)]
pub(super) struct OldKeys {
    pub(super) sign_algorithm: u32,
    pub(super) seal_algorithm: u32,
    pub(super) context: LucidKey,
}

/// `gss_krb5_cfx_keydata_t`: keys of the tokens of RFC 4121.
#[repr(C)]
pub(super) struct CfxKeys {
    pub(super) have_acceptor_subkey: u32,
    pub(super) context: LucidKey,
    pub(super) acceptor_subkey: LucidKey,
}

/// `gss_krb5_lucid_context_v1_t`.
#[repr(C)]
pub(super) struct LucidContext {
    pub(super) version: u32,
    pub(super) initiate: u32,
    pub(super) end_time: u32,
    pub(super) send_sequence: u64,
    pub(super) receive_sequence: u64,
    /// 0: tokens of RFC 1964, 1: those of RFC 4121.
    pub(super) protocol: u32,
    pub(super) old: OldKeys,
    pub(super) cfx: CfxKeys,
}

#[link(name = "gssapi_krb5")]
unsafe extern "C" {
    pub(super) fn gss_import_name(
        minor: *mut Status,
        text: *mut Buffer,
        kind: *mut Oid,
        name: *mut NameHandle,
    ) -> Status;

    pub(super) fn gss_display_name(
        minor: *mut Status,
        name: NameHandle,
        text: *mut Buffer,
        kind: *mut *mut Oid,
    ) -> Status;

    pub(super) fn gss_release_name(minor: *mut Status, name: *mut NameHandle) -> Status;

    pub(super) fn gss_release_buffer(minor: *mut Status, buffer: *mut Buffer) -> Status;

    pub(super) fn gss_acquire_cred_from(
        minor: *mut Status,
        name: NameHandle,
        lifetime_asked: u32,
        mechanisms: *mut OidSet,
        usage: c_int,
        store: *const KeyValueSet,
        credential: *mut CredentialHandle,
        mechanisms_got: *mut *mut OidSet,
        lifetime: *mut u32,
    ) -> Status;

    pub(super) fn gss_release_cred(minor: *mut Status, credential: *mut CredentialHandle)
    -> Status;

    pub(super) fn gss_init_sec_context(
        minor: *mut Status,
        credential: CredentialHandle,
        context: *mut ContextHandle,
        target: NameHandle,
        mechanism: *mut Oid,
        flags_asked: u32,
        lifetime_asked: u32,
        bindings: *mut c_void,
        token: *mut Buffer,
        mechanism_got: *mut *mut Oid,
        answer: *mut Buffer,
        flags: *mut u32,
        lifetime: *mut u32,
    ) -> Status;

    pub(super) fn gss_accept_sec_context(
        minor: *mut Status,
        context: *mut ContextHandle,
        credential: CredentialHandle,
        token: *mut Buffer,
        bindings: *mut c_void,
        source: *mut NameHandle,
        mechanism: *mut *mut Oid,
        answer: *mut Buffer,
        flags: *mut u32,
        lifetime: *mut u32,
        delegated: *mut CredentialHandle,
    ) -> Status;

    pub(super) fn gss_inquire_context(
        minor: *mut Status,
        context: ContextHandle,
        source: *mut NameHandle,
        target: *mut NameHandle,
        lifetime: *mut u32,
        mechanism: *mut *mut Oid,
        flags: *mut u32,
        locally_initiated: *mut c_int,
        open: *mut c_int,
    ) -> Status;

    pub(super) fn gss_delete_sec_context(
        minor: *mut Status,
        context: *mut ContextHandle,
        token: *mut Buffer,
    ) -> Status;

    pub(super) fn gss_display_status(
        minor: *mut Status,
        value: u32,
        kind: c_int,
        mechanism: *mut Oid,
        more: *mut u32,
        text: *mut Buffer,
    ) -> Status;

    pub(super) fn gss_krb5_export_lucid_sec_context(
        minor: *mut Status,
        context: *mut ContextHandle,
        version: u32,
        exported: *mut *mut c_void,
    ) -> Status;

    pub(super) fn gss_krb5_free_lucid_sec_context(
        minor: *mut Status,
        exported: *mut c_void,
    ) -> Status;
}

/// `krb5_context`.
pub(super) type LibraryHandle = *mut c_void;
/// `krb5_ccache`.
pub(super) type CacheHandle = *mut c_void;

#[link(name = "krb5")]
unsafe extern "C" {
    pub(super) fn krb5_init_context(library: *mut LibraryHandle) -> i32;
    pub(super) fn krb5_free_context(library: LibraryHandle);
    pub(super) fn krb5_cc_resolve(
        library: LibraryHandle,
        name: *const c_char,
        cache: *mut CacheHandle,
    ) -> i32;
    /// Closes the handle too, also in case of an error.
    pub(super) fn krb5_cc_destroy(library: LibraryHandle, cache: CacheHandle) -> i32;
}
