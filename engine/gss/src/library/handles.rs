//! What the library hands out, each freed when dropped, and the calls that make it. All `unsafe` code of the package is
//! here.
//!
//! The library may be called by several threads, but not with one handle by two of them at once: handles here can be
//! sent, and not shared.
#![allow(unsafe_code, reason = "the calls of a C library")]

use core::ffi::{CStr, c_void};
use core::{ptr, slice};
use std::ffi::CString;

use super::error::KerberosError;
use super::ffi;
use crate::enctype::{Enctype, SessionKey};

/// Kerberos, 1.2.840.113554.1.2.2.
const KERBEROS: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02";
/// Name of a principal, `nfs/server@REALM`: 1.2.840.113554.1.2.2.1.
const PRINCIPAL: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02\x01";
/// Name of a service on a host, `nfs@server`: 1.2.840.113554.1.2.1.4.
const HOST_SERVICE: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x01\x04";

/// Any status in the upper half of a major status is an error.
const ERRORS: u32 = 0xffff_0000;
const CONTINUE_NEEDED: u32 = 1;
const MUTUAL: u32 = 2;
const CONFIDENTIAL: u32 = 16;
const INTEGRITY: u32 = 32;
/// Asked for in INIT. Replay and sequence detection are not among them: sequence numbers of RPCSEC_GSS do that,
/// and calls overtake each other (RFC 2203 section 5.2.2).
const ASKED: u32 = MUTUAL | CONFIDENTIAL | INTEGRITY;
/// `GSS_C_DCE_STYLE`: three tokens, and messages of another layout.
const DCE_STYLE: u32 = 0x1000;
const GSS_CODE: i32 = 1;
const MECHANISM_CODE: i32 = 2;
const STATUS_LINES: usize = 4;
const LUCID_VERSION: u32 = 1;
/// Tokens of RFC 4121.
const CFX: u32 = 1;

const NAME_MAX_BYTES: usize = 1024;

fn oid(content: &'static [u8]) -> ffi::Oid {
    // The library does not write to what it is given as an identifier.
    ffi::Oid { length: content.len() as u32, elements: content.as_ptr().cast_mut().cast() }
}

fn input(bytes: &[u8]) -> ffi::Buffer {
    ffi::Buffer { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
}

struct Output(ffi::Buffer);

impl Output {
    const fn new() -> Self {
        Self(ffi::Buffer { length: 0, value: ptr::null_mut() })
    }

    fn as_slice(&self) -> &[u8] {
        if self.0.value.is_null() {
            return &[];
        }
        // SAFETY: the library has filled the buffer: these bytes, which stay until it is released.
        unsafe { slice::from_raw_parts(self.0.value.cast(), self.0.length) }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: empty, or filled by the library and not released before.
        unsafe { ffi::gss_release_buffer(&raw mut minor, &raw mut self.0) };
    }
}

/// The library's words for a status, of this thread's last call where it has more to say about that.
pub(super) fn status_text(major: u32, minor: u32) -> String {
    let (value, kind) = if minor == 0 { (major, GSS_CODE) } else { (minor, MECHANISM_CODE) };
    let mut mechanism = oid(KERBEROS);
    let (mut lines, mut more) = (Vec::new(), 0);
    for _ in 0..STATUS_LINES {
        let (mut ignored, mut text) = (0, Output::new());
        // SAFETY: all point to what lives for the call.
        let status = unsafe {
            ffi::gss_display_status(
                &raw mut ignored,
                value,
                kind,
                &raw mut mechanism,
                &raw mut more,
                &raw mut text.0,
            )
        };
        if status & ERRORS != 0 {
            break;
        }
        lines.push(String::from_utf8_lossy(text.as_slice()).into_owned());
        if more == 0 {
            break;
        }
    }
    lines.join("; ")
}

/// `Err` for every status but COMPLETE and CONTINUE_NEEDED; `true` for the latter.
fn checked(major: u32, minor: u32) -> Result<bool, KerberosError> {
    match major {
        0 => Ok(false),
        CONTINUE_NEEDED => Ok(true),
        _ => Err(KerberosError::from_status(major, minor, &status_text(major, minor))),
    }
}

pub(super) struct Name(ffi::NameHandle);

// SAFETY: a name belongs to no thread, and this is its only handle.
unsafe impl Send for Name {}

impl Name {
    /// `nfs@server` is a service on a host; a name with a slash is a principal's.
    pub(super) fn service(text: &str) -> Result<Self, KerberosError> {
        if text.contains('/') { Self::principal(text) } else { Self::import(text, HOST_SERVICE) }
    }

    pub(super) fn principal(text: &str) -> Result<Self, KerberosError> {
        Self::import(text, PRINCIPAL)
    }

    fn import(text: &str, kind: &'static [u8]) -> Result<Self, KerberosError> {
        // The library takes a length, and yet reads to the first NUL.
        if text.contains('\0') {
            return Err(KerberosError::refused("a path or name contains a NUL"));
        }
        let (mut minor, mut name) = (0, Self(ptr::null_mut()));
        let (mut text, mut kind) = (input(text.as_bytes()), oid(kind));
        // SAFETY: all point to what lives for the call; the library copies the text.
        let major = unsafe {
            ffi::gss_import_name(&raw mut minor, &raw mut text, &raw mut kind, &raw mut name.0)
        };
        checked(major, minor)?;
        Ok(name)
    }

    /// The name as text, if it is a principal's. Anonymous ones are of another kind.
    fn display(&self) -> Result<String, KerberosError> {
        let (mut minor, mut text) = (0, Output::new());
        let mut kind: *mut ffi::Oid = ptr::null_mut();
        // SAFETY: all point to what lives for the call.
        let major = unsafe {
            ffi::gss_display_name(&raw mut minor, self.0, &raw mut text.0, &raw mut kind)
        };
        checked(major, minor)?;
        let text = text.as_slice();
        // SAFETY: null, or one of the library's own identifiers, which are static.
        let is_principal = unsafe { is_oid(kind, PRINCIPAL) };
        if !is_principal || text.is_empty() || text.len() > NAME_MAX_BYTES {
            return Err(KerberosError::refused("the peer is anonymous, or its name is too long"));
        }
        let name =
            str::from_utf8(text).map_err(|_| KerberosError::refused("a name is not UTF-8"))?;
        // The server's realm is empty where the KDC was asked for it.
        Ok(name.strip_suffix('@').unwrap_or(name).to_owned())
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if !self.0.is_null() {
            let mut minor = 0;
            // SAFETY: a name of the library's that is not released before.
            unsafe { ffi::gss_release_name(&raw mut minor, &raw mut self.0) };
        }
    }
}

/// # Safety
/// `kind` is null, or points to an identifier whose content is there.
unsafe fn is_oid(kind: *const ffi::Oid, content: &[u8]) -> bool {
    // SAFETY: by contract.
    let Some(kind) = (unsafe { kind.as_ref() }) else { return false };
    if kind.elements.is_null() {
        return false;
    }
    // SAFETY: by contract, there are that many bytes.
    unsafe { slice::from_raw_parts(kind.elements.cast::<u8>(), kind.length as usize) == content }
}

#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum Usage {
    Initiate = 1,
    Accept = 2,
}

/// Where a credential is from: pairs of a key of the library's and a value, such as `keytab` and `FILE:/etc/nfs.keytab`.
pub(super) type Store = [(&'static CStr, CString)];

/// Tickets of an initiator, or keys of an acceptor.
pub(super) struct Credential(ffi::CredentialHandle);

// SAFETY: a credential belongs to no thread, and this is its only handle.
unsafe impl Send for Credential {}

impl Credential {
    /// Of the principal `name`, or of the one that is in the store.
    pub(super) fn acquire(
        name: Option<&Name>,
        usage: Usage,
        store: &Store,
    ) -> Result<Self, KerberosError> {
        let pair = |(key, value): &(&'static CStr, CString)| ffi::KeyValue {
            key: key.as_ptr(),
            value: value.as_ptr(),
        };
        let mut elements: Vec<_> = store.iter().map(pair).collect();
        let store =
            ffi::KeyValueSet { count: elements.len() as u32, elements: elements.as_mut_ptr() };
        let mut kerberos = oid(KERBEROS);
        let mut mechanisms = ffi::OidSet { count: 1, elements: &raw mut kerberos };
        let (mut minor, mut credential) = (0, Self(ptr::null_mut()));
        // SAFETY: all point to what lives for the call, and what may be null is.
        let major = unsafe {
            ffi::gss_acquire_cred_from(
                &raw mut minor,
                name.map_or(ptr::null_mut(), |name| name.0),
                u32::MAX,
                &raw mut mechanisms,
                usage as i32,
                if store.count == 0 { ptr::null() } else { &raw const store },
                &raw mut credential.0,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        checked(major, minor)?;
        Ok(credential)
    }
}

impl Drop for Credential {
    fn drop(&mut self) {
        if !self.0.is_null() {
            let mut minor = 0;
            // SAFETY: a credential of the library's that is not released before.
            unsafe { ffi::gss_release_cred(&raw mut minor, &raw mut self.0) };
        }
    }
}

pub(super) struct LibraryContext(ffi::ContextHandle);

// SAFETY: a context belongs to no thread, and this is its only handle.
unsafe impl Send for LibraryContext {}

pub(super) struct Step {
    /// Another token of the peer's is needed.
    pub(super) continues: bool,
    /// For the peer; may be empty.
    pub(super) token: Vec<u8>,
    /// Seconds.
    pub(super) lifetime: u32,
}

impl LibraryContext {
    pub(super) const fn new() -> Self {
        Self(ptr::null_mut())
    }

    /// A step of an initiator, with the token of the acceptor after the first.
    pub(super) fn initiate(
        &mut self,
        credential: &Credential,
        target: &Name,
        token: &[u8],
    ) -> Result<Step, KerberosError> {
        let (mut kerberos, mut token, mut answer) = (oid(KERBEROS), input(token), Output::new());
        let (mut minor, mut flags, mut lifetime) = (0, 0, 0);
        // SAFETY: all point to what lives for the call, and what may be null is. The library sets the context to null
        // when it has deleted it.
        let major = unsafe {
            ffi::gss_init_sec_context(
                &raw mut minor,
                credential.0,
                &raw mut self.0,
                target.0,
                &raw mut kerberos,
                ASKED,
                0,
                ptr::null_mut(),
                &raw mut token,
                ptr::null_mut(),
                &raw mut answer.0,
                &raw mut flags,
                &raw mut lifetime,
            )
        };
        let continues = checked(major, minor)?;
        if !continues && flags & ASKED != ASKED {
            return Err(KerberosError::refused("the server did not prove who it is"));
        }
        Ok(Step { continues, token: answer.as_slice().to_vec(), lifetime })
    }

    /// The only step of an acceptor, and the name of the initiator.
    pub(super) fn accept(
        &mut self,
        credential: &Credential,
        token: &[u8],
    ) -> Result<(Step, String), KerberosError> {
        let (mut token, mut answer, mut source) =
            (input(token), Output::new(), Name(ptr::null_mut()));
        let (mut minor, mut flags, mut lifetime) = (0, 0, 0);
        let mut mechanism: *mut ffi::Oid = ptr::null_mut();
        // SAFETY: all point to what lives for the call, and what may be null is.
        let major = unsafe {
            ffi::gss_accept_sec_context(
                &raw mut minor,
                &raw mut self.0,
                credential.0,
                &raw mut token,
                ptr::null_mut(),
                &raw mut source.0,
                &raw mut mechanism,
                &raw mut answer.0,
                &raw mut flags,
                &raw mut lifetime,
                ptr::null_mut(),
            )
        };
        let continues = checked(major, minor).map_err(KerberosError::of_acceptor)?;
        // SAFETY: null, or one of the library's own identifiers, which are static.
        if continues || flags & DCE_STYLE != 0 || !unsafe { is_oid(mechanism, KERBEROS) } {
            return Err(KerberosError::refused("a context of Kerberos takes one token here"));
        }
        let token = answer.as_slice().to_vec();
        Ok((Step { continues, token, lifetime }, source.display()?))
    }

    pub(super) fn target(&self) -> Result<String, KerberosError> {
        let (mut minor, mut target) = (0, Name(ptr::null_mut()));
        // SAFETY: all point to what lives for the call, and what may be null is.
        let major = unsafe {
            ffi::gss_inquire_context(
                &raw mut minor,
                self.0,
                ptr::null_mut(),
                &raw mut target.0,
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        checked(major, minor)?;
        target.display()
    }

    /// The key of a complete context, and whether the acceptor chose it. This ends the library's context.
    pub(super) fn export(mut self) -> Result<(SessionKey, bool), KerberosError> {
        let (mut minor, mut exported) = (0, ptr::null_mut());
        // SAFETY: all point to what lives for the call.
        let major = unsafe {
            ffi::gss_krb5_export_lucid_sec_context(
                &raw mut minor,
                &raw mut self.0,
                LUCID_VERSION,
                &raw mut exported,
            )
        };
        checked(major, minor)?;
        Exported(exported).key()
    }
}

impl Drop for LibraryContext {
    fn drop(&mut self) {
        if !self.0.is_null() {
            let mut minor = 0;
            // SAFETY: a context of the library's that is not deleted before; no token is asked for.
            unsafe {
                ffi::gss_delete_sec_context(&raw mut minor, &raw mut self.0, ptr::null_mut())
            };
        }
    }
}

/// Keys that the library has exported. It clears them when they are freed.
struct Exported(*mut c_void);

impl Exported {
    fn key(&self) -> Result<(SessionKey, bool), KerberosError> {
        // SAFETY: null, or what every version of the structure begins with.
        let version = unsafe { self.0.cast::<u32>().as_ref() };
        if version != Some(&LUCID_VERSION) {
            return Err(KerberosError::refused("the library exports keys in another form"));
        }
        // SAFETY: of this version, and it stays until it is freed.
        let context = unsafe { &*self.0.cast::<ffi::LucidContext>() };
        if context.protocol != CFX {
            return Err(KerberosError::unsupported("older than AES, with tokens of RFC 1964"));
        }
        let has_subkey = context.cfx.have_acceptor_subkey != 0;
        let key = if has_subkey { &context.cfx.acceptor_subkey } else { &context.cfx.context };
        let enctype = i32::try_from(key.enctype).ok().and_then(Enctype::from_number);
        let enctype = enctype.ok_or_else(|| {
            KerberosError::unsupported(&format!("encryption type {}", key.enctype))
        })?;
        if key.data.is_null() {
            return Err(KerberosError::refused("the library exported no key"));
        }
        // SAFETY: the library has that many bytes there, until they are freed.
        let bytes = unsafe { slice::from_raw_parts(key.data.cast(), key.length as usize) };
        let key = SessionKey::new(enctype, bytes);
        key.map(|key| (key, has_subkey)).map_err(|wrong| KerberosError::refused(&wrong.to_string()))
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        if !self.0.is_null() {
            let mut minor = 0;
            // SAFETY: exported by the library, and not freed before.
            unsafe { ffi::gss_krb5_free_lucid_sec_context(&raw mut minor, self.0) };
        }
    }
}

/// A ticket cache in this process' memory, for tickets that are asked for with a keytab; destroyed when dropped.
#[derive(Debug)]
pub(super) struct MemoryCache(pub(super) CString);

impl Drop for MemoryCache {
    fn drop(&mut self) {
        let (mut library, mut cache) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: what each call needs was made by the one before it. Destroying a cache closes its handle.
        unsafe {
            if ffi::krb5_init_context(&raw mut library) != 0 {
                return;
            }
            if ffi::krb5_cc_resolve(library, self.0.as_ptr(), &raw mut cache) == 0 {
                ffi::krb5_cc_destroy(library, cache);
            }
            ffi::krb5_free_context(library);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::error::Fault;
    use std::mem::ManuallyDrop;

    /// Keys as the library exports them: of this protocol, and of these encryption types, that of the acceptor if it has
    /// one.
    fn exported(
        protocol: u32,
        own: u32,
        acceptor: Option<u32>,
    ) -> Result<(SessionKey, bool), KerberosError> {
        let mut bytes = [0x5a_u8; 32];
        let mut key = |enctype: u32| {
            let length = if [17, 19].contains(&enctype) { 16 } else { 32 };
            ffi::LucidKey { enctype, length, data: bytes.as_mut_ptr().cast() }
        };
        let old = ffi::OldKeys { sign_algorithm: 0, seal_algorithm: 0, context: key(own) };
        let cfx = ffi::CfxKeys {
            have_acceptor_subkey: acceptor.is_some().into(),
            context: key(own),
            acceptor_subkey: key(acceptor.unwrap_or(0)),
        };
        let mut context = ffi::LucidContext {
            version: LUCID_VERSION,
            initiate: 1,
            end_time: 0,
            send_sequence: 0,
            receive_sequence: 0,
            protocol,
            old,
            cfx,
        };
        // The library has not made it, and must not free it.
        ManuallyDrop::new(Exported((&raw mut context).cast())).key()
    }

    #[track_caller]
    fn assert_refused(exported: Result<(SessionKey, bool), KerberosError>, why: &str) {
        let error = exported.err().unwrap();
        assert_eq!(error.fault, Fault::UnsupportedEncryption);
        let words = "the key is of an encryption type that is not supported; use AES (17 to 20)";
        assert_eq!(error.to_string(), format!("{words} ({why})"));
    }

    /// RFC 4121 section 4.2 with the encryption types of RFC 3962 and RFC 8009: 23 is arcfour-hmac, 16 triple DES, 26 Camellia.
    #[test]
    fn keys_of_other_encryption_types_than_17_to_20_are_refused() {
        for enctype in (0..200).chain([u32::MAX, 17 << 16, 17 | 1 << 31]) {
            // The key that protects messages is that of the acceptor where there is one.
            for (own, acceptor) in [(enctype, None), (18, Some(enctype))] {
                let exported = exported(CFX, own, acceptor);
                if (17..=20).contains(&enctype) {
                    let (key, has_subkey) = exported.unwrap();
                    assert_eq!(key.enctype().number().cast_unsigned(), enctype);
                    assert_eq!(has_subkey, acceptor.is_some());
                    continue;
                }
                assert_refused(exported, &format!("encryption type {enctype}"));
            }
        }
    }

    #[test]
    fn contexts_with_tokens_of_rfc_1964_are_refused_whatever_their_key() {
        for enctype in [1, 3, 16, 18, 23] {
            assert_refused(exported(0, enctype, None), "older than AES, with tokens of RFC 1964");
        }
    }
}
