/* What src/library/ffi.rs and error.rs declare by hand, compared with the headers by the compiler: functions of
 * another type, fields at other places and codes of other values do not compile. */
#include <gssapi/gssapi.h>
#include <gssapi/gssapi_ext.h>
#include <gssapi/gssapi_krb5.h>
#include <krb5.h>
#include <stddef.h>

#define FIELD(type, field, offset, bytes)                                                                            \
    _Static_assert(offsetof(type, field) == (offset) && sizeof(((type *)0)->field) == (bytes), #type "." #field)
#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#define CODE(name, value) _Static_assert((name) == (value), #name)
#define FUNCTION(name, ...)                                                                                          \
    _Static_assert(_Generic(&(name), OM_uint32 (*)(__VA_ARGS__): 1, default: 0), #name)

SIZE(OM_uint32, 4);
SIZE(int, 4);
SIZE(gss_name_t, 8);
SIZE(gss_cred_id_t, 8);
SIZE(gss_ctx_id_t, 8);
SIZE(gss_cred_usage_t, 4);

SIZE(gss_buffer_desc, 16);
FIELD(gss_buffer_desc, length, 0, 8);
FIELD(gss_buffer_desc, value, 8, 8);
SIZE(gss_OID_desc, 16);
FIELD(gss_OID_desc, length, 0, 4);
FIELD(gss_OID_desc, elements, 8, 8);
SIZE(gss_OID_set_desc, 16);
FIELD(gss_OID_set_desc, count, 0, 8);
FIELD(gss_OID_set_desc, elements, 8, 8);
SIZE(gss_key_value_element_desc, 16);
FIELD(gss_key_value_element_desc, key, 0, 8);
FIELD(gss_key_value_element_desc, value, 8, 8);
SIZE(gss_key_value_set_desc, 16);
FIELD(gss_key_value_set_desc, count, 0, 4);
FIELD(gss_key_value_set_desc, elements, 8, 8);
SIZE(gss_krb5_lucid_key_t, 16);
FIELD(gss_krb5_lucid_key_t, type, 0, 4);
FIELD(gss_krb5_lucid_key_t, length, 4, 4);
FIELD(gss_krb5_lucid_key_t, data, 8, 8);
SIZE(gss_krb5_lucid_context_v1_t, 104);
FIELD(gss_krb5_lucid_context_v1_t, version, 0, 4);
FIELD(gss_krb5_lucid_context_v1_t, initiate, 4, 4);
FIELD(gss_krb5_lucid_context_v1_t, endtime, 8, 4);
FIELD(gss_krb5_lucid_context_v1_t, send_seq, 16, 8);
FIELD(gss_krb5_lucid_context_v1_t, recv_seq, 24, 8);
FIELD(gss_krb5_lucid_context_v1_t, protocol, 32, 4);
FIELD(gss_krb5_lucid_context_v1_t, rfc1964_kd, 40, 24);
FIELD(gss_krb5_lucid_context_v1_t, cfx_kd, 64, 40);
FIELD(gss_krb5_lucid_context_v1_t, cfx_kd.have_acceptor_subkey, 64, 4);
FIELD(gss_krb5_lucid_context_v1_t, cfx_kd.ctx_key, 72, 16);
FIELD(gss_krb5_lucid_context_v1_t, cfx_kd.acceptor_subkey, 88, 16);

FUNCTION(gss_import_name, OM_uint32 *, gss_buffer_t, gss_OID, gss_name_t *);
FUNCTION(gss_display_name, OM_uint32 *, gss_name_t, gss_buffer_t, gss_OID *);
FUNCTION(gss_release_name, OM_uint32 *, gss_name_t *);
FUNCTION(gss_release_buffer, OM_uint32 *, gss_buffer_t);
FUNCTION(gss_acquire_cred_from, OM_uint32 *, gss_name_t, OM_uint32, gss_OID_set, gss_cred_usage_t,
    gss_const_key_value_set_t, gss_cred_id_t *, gss_OID_set *, OM_uint32 *);
FUNCTION(gss_release_cred, OM_uint32 *, gss_cred_id_t *);
FUNCTION(gss_init_sec_context, OM_uint32 *, gss_cred_id_t, gss_ctx_id_t *, gss_name_t, gss_OID, OM_uint32, OM_uint32,
    gss_channel_bindings_t, gss_buffer_t, gss_OID *, gss_buffer_t, OM_uint32 *, OM_uint32 *);
FUNCTION(gss_accept_sec_context, OM_uint32 *, gss_ctx_id_t *, gss_cred_id_t, gss_buffer_t, gss_channel_bindings_t,
    gss_name_t *, gss_OID *, gss_buffer_t, OM_uint32 *, OM_uint32 *, gss_cred_id_t *);
FUNCTION(gss_inquire_context, OM_uint32 *, gss_ctx_id_t, gss_name_t *, gss_name_t *, OM_uint32 *, gss_OID *,
    OM_uint32 *, int *, int *);
FUNCTION(gss_delete_sec_context, OM_uint32 *, gss_ctx_id_t *, gss_buffer_t);
FUNCTION(gss_display_status, OM_uint32 *, OM_uint32, int, gss_OID, OM_uint32 *, gss_buffer_t);
FUNCTION(gss_krb5_export_lucid_sec_context, OM_uint32 *, gss_ctx_id_t *, OM_uint32, void **);
FUNCTION(gss_krb5_free_lucid_sec_context, OM_uint32 *, void *);
_Static_assert(_Generic(&krb5_init_context, krb5_int32 (*)(krb5_context *): 1, default: 0), "krb5_init_context");
_Static_assert(_Generic(&krb5_free_context, void (*)(krb5_context): 1, default: 0), "krb5_free_context");
_Static_assert(_Generic(&krb5_cc_resolve, krb5_int32 (*)(krb5_context, const char *, krb5_ccache *): 1, default: 0),
    "krb5_cc_resolve");
_Static_assert(_Generic(&krb5_cc_destroy, krb5_int32 (*)(krb5_context, krb5_ccache): 1, default: 0),
    "krb5_cc_destroy");

CODE(GSS_S_CONTINUE_NEEDED, 1);
CODE(GSS_C_MUTUAL_FLAG, 2);
CODE(GSS_C_CONF_FLAG, 16);
CODE(GSS_C_INTEG_FLAG, 32);
CODE(GSS_C_DCE_STYLE, 0x1000);
CODE(GSS_C_GSS_CODE, 1);
CODE(GSS_C_MECH_CODE, 2);
CODE(GSS_C_INITIATE, 1);
CODE(GSS_C_ACCEPT, 2);
CODE(GSS_C_INDEFINITE, 0xffffffff);
CODE(GSS_S_BAD_MECH, 1 << 16);
CODE(GSS_S_BAD_SIG, 6 << 16);
CODE(GSS_S_NO_CRED, 7 << 16);
CODE(GSS_S_DEFECTIVE_TOKEN, 9 << 16);
CODE(GSS_S_CREDENTIALS_EXPIRED, 11 << 16);
CODE(GSS_S_FAILURE, 13 << 16);

CODE(KRB5_CC_NOTFOUND, -1765328243);
CODE(KRB5_FCC_NOFILE, -1765328189);
CODE(KRB5KRB_AP_ERR_TKT_EXPIRED, -1765328352);
CODE(KRB5KRB_AP_ERR_TKT_NYV, -1765328351);
CODE(KRB5KRB_AP_ERR_SKEW, -1765328347);
CODE(KRB5KDC_ERR_S_PRINCIPAL_UNKNOWN, -1765328377);
CODE(KRB5KDC_ERR_C_PRINCIPAL_UNKNOWN, -1765328378);
CODE(KRB5_KDC_UNREACH, -1765328228);
CODE(KRB5_REALM_UNKNOWN, -1765328230);
CODE(KRB5_CONFIG_NODEFREALM, -1765328160);
CODE(KRB5_ERR_HOST_REALM_UNKNOWN, -1765328167);
CODE(KRB5_KT_NOTFOUND, -1765328203);
CODE(KRB5KRB_AP_ERR_NOT_US, -1765328349);
CODE(KRB5KRB_AP_ERR_NOKEY, -1765328339);
CODE(KRB5_KT_KVNONOTFOUND, -1765328154);
CODE(KRB5KRB_AP_ERR_BADKEYVER, -1765328340);
CODE(KRB5KDC_ERR_ETYPE_NOSUPP, -1765328370);
CODE(KRB5_CONFIG_ETYPE_NOSUPP, -1765328147);
CODE(KRB5KRB_AP_ERR_BAD_INTEGRITY, -1765328353);
CODE(KRB5KRB_AP_ERR_MODIFIED, -1765328343);
