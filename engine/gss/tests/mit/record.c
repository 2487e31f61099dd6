/* Records tokens of MIT's Kerberos library, and checks those of this crate with it.
 *
 *   record SERVICE            prints session key and tokens of a new context with SERVICE
 *   record SERVICE COMMAND    runs COMMAND with the session key as arguments, and verifies the tokens it prints
 *   record SERVICE --speed    prints, for each length, the nanoseconds of CPU time of MIC, verify, wrap and unwrap
 *
 * Both ends are in this process. Needs a ticket and a keytab: see the script `record`. */
#include <gssapi/gssapi.h>
#include <gssapi/gssapi_krb5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const size_t lengths[] = {0, 1, 4, 8, 15, 16, 17, 31, 32, 33, 47, 48, 64, 128, 300, 4096, 4097};
#define LENGTHS (sizeof lengths / sizeof *lengths)

static void need(OM_uint32 major, const char *what) {
    if (GSS_ERROR(major)) {
        fprintf(stderr, "%s failed: %08x\n", what, major);
        exit(1);
    }
}

static void print_hex(const unsigned char *bytes, size_t length) {
    for (size_t at = 0; at < length; at++) printf("%02x", bytes[at]);
}

/* Message LENGTH: bytes at * 7 + LENGTH. */
static gss_buffer_desc message(size_t length) {
    static unsigned char bytes[8192];
    for (size_t at = 0; at < length; at++) bytes[at] = (unsigned char)(at * 7 + length);
    return (gss_buffer_desc){length, bytes};
}

static void establish(const char *service, gss_ctx_id_t *initiator, gss_ctx_id_t *acceptor) {
    OM_uint32 major, minor, flags = 0;
    gss_buffer_desc text = {strlen(service), (void *)service}, token = {0, NULL}, answer = {0, NULL};
    gss_name_t name;
    need(gss_import_name(&minor, &text, GSS_C_NT_HOSTBASED_SERVICE, &name), "import_name");
    for (;;) {
        major = gss_init_sec_context(&minor, GSS_C_NO_CREDENTIAL, initiator, name, GSS_C_NO_OID,
            GSS_C_MUTUAL_FLAG | GSS_C_INTEG_FLAG | GSS_C_CONF_FLAG, 0, NULL, &answer, NULL, &token, &flags, NULL);
        need(major, "init_sec_context");
        if (token.length == 0) break;
        need(gss_accept_sec_context(&minor, acceptor, GSS_C_NO_CREDENTIAL, &token, NULL, NULL, NULL, &answer,
            NULL, NULL, NULL), "accept_sec_context");
        if (major == GSS_S_COMPLETE) break;
    }
}

/* The session key. Export ends a context, so it is done to a copy. */
static void key_of(gss_ctx_id_t *context, gss_krb5_lucid_key_t *key, int *subkey) {
    OM_uint32 minor;
    gss_buffer_desc saved;
    gss_ctx_id_t copy;
    void *exported;
    need(gss_export_sec_context(&minor, context, &saved), "export_sec_context");
    need(gss_import_sec_context(&minor, &saved, context), "import_sec_context");
    need(gss_import_sec_context(&minor, &saved, &copy), "import_sec_context");
    need(gss_krb5_export_lucid_sec_context(&minor, &copy, 1, &exported), "export_lucid");
    gss_krb5_lucid_context_v1_t *lucid = exported;
    if (lucid->protocol != 1) exit(2);
    *subkey = lucid->cfx_kd.have_acceptor_subkey;
    *key = *subkey ? lucid->cfx_kd.acceptor_subkey : lucid->cfx_kd.ctx_key;
}

static void record(const char *from, gss_ctx_id_t context) {
    OM_uint32 minor;
    for (size_t at = 0; at < LENGTHS; at++) {
        gss_buffer_desc plain = message(lengths[at]), token;
        need(gss_get_mic(&minor, context, GSS_C_QOP_DEFAULT, &plain, &token), "get_mic");
        printf("%s mic %zu ", from, lengths[at]);
        print_hex(token.value, token.length);
        need(gss_wrap(&minor, context, 1, GSS_C_QOP_DEFAULT, &plain, NULL, &token), "wrap");
        printf("\n%s wrap %zu ", from, lengths[at]);
        print_hex(token.value, token.length);
        printf("\n");
    }
}

static size_t parse_hex(const char *text, unsigned char *bytes) {
    size_t length = 0;
    unsigned value;
    while (sscanf(text + 2 * length, "%2x", &value) == 1) bytes[length++] = (unsigned char)value;
    return length;
}

/* Each line: "initiator|acceptor mic|wrap LENGTH HEX". */
static void check(FILE *lines, gss_ctx_id_t initiator, gss_ctx_id_t acceptor) {
    static char line[16384], hex[16384];
    static unsigned char bytes[8192];
    char from[16], kind[16];
    size_t length, checked = 0;
    while (fgets(line, sizeof line, lines)) {
        if (sscanf(line, "%15s %15s %zu %16383s", from, kind, &length, hex) != 4) exit(3);
        OM_uint32 minor;
        int sealed = 0;
        gss_ctx_id_t receiver = strcmp(from, "initiator") == 0 ? acceptor : initiator;
        gss_buffer_desc token = {parse_hex(hex, bytes), bytes}, plain = message(length), opened;
        if (strcmp(kind, "mic") == 0) {
            need(gss_verify_mic(&minor, receiver, &plain, &token, NULL), line);
        } else {
            need(gss_unwrap(&minor, receiver, &token, &opened, &sealed, NULL), line);
            if (!sealed || opened.length != length || memcmp(opened.value, plain.value, length) != 0) exit(4);
        }
        checked++;
    }
    printf("%zu tokens verified by MIT's library\n", checked);
    if (checked == 0) exit(5);
}

/* The best of several rounds, as in the crate's example `speed`. */
#define NANOS(operation) __extension__({                                     \
    double best = 1e18;                                                      \
    for (int round = 0; round < 7; round++) {                                \
        long times = 0, began = cpu_time(), took;                            \
        do {                                                                 \
            for (int time = 0; time < 16; time++) { operation; }             \
            times += 16; /* asking for the time takes as long as a short MIC */ \
            took = cpu_time() - began;                                       \
        } while (took < 40000000);                                           \
        if ((double)took / (double)times < best) best = (double)took / (double)times; \
    }                                                                        \
    best;                                                                    \
})

static long cpu_time(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

static void speed(gss_ctx_id_t initiator, gss_ctx_id_t acceptor) {
    static unsigned char bytes[1 << 20];
    static const size_t sizes[] = {8, 128, 4096, sizeof bytes};
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        OM_uint32 minor;
        gss_buffer_desc plain = {sizes[at], bytes}, mic, sealed, token, opened;
        need(gss_get_mic(&minor, initiator, GSS_C_QOP_DEFAULT, &plain, &mic), "get_mic");
        need(gss_wrap(&minor, initiator, 1, GSS_C_QOP_DEFAULT, &plain, NULL, &sealed), "wrap");
        printf("%zu", sizes[at]);
        printf(" %.0f", NANOS({
            gss_get_mic(&minor, initiator, GSS_C_QOP_DEFAULT, &plain, &token);
            gss_release_buffer(&minor, &token);
        }));
        printf(" %.0f", NANOS(gss_verify_mic(&minor, acceptor, &plain, &mic, NULL)));
        printf(" %.0f", NANOS({
            gss_wrap(&minor, initiator, 1, GSS_C_QOP_DEFAULT, &plain, NULL, &token);
            gss_release_buffer(&minor, &token);
        }));
        printf(" %.0f\n", NANOS({
            gss_unwrap(&minor, acceptor, &sealed, &opened, NULL, NULL);
            gss_release_buffer(&minor, &opened);
        }));
    }
}

int main(int count, char **arguments) {
    gss_ctx_id_t initiator = GSS_C_NO_CONTEXT, acceptor = GSS_C_NO_CONTEXT;
    gss_krb5_lucid_key_t key;
    int subkey;
    if (count < 2) return 64;
    establish(arguments[1], &initiator, &acceptor);
    if (count > 2 && strcmp(arguments[2], "--speed") == 0) {
        speed(initiator, acceptor);
        return 0;
    }
    key_of(&initiator, &key, &subkey);
    if (count == 2) {
        printf("enctype %u\nsubkey %d\nkey ", key.type, subkey);
        print_hex(key.data, key.length);
        printf("\n");
        record("initiator", initiator);
        record("acceptor", acceptor);
        return 0;
    }
    char command[4096];
    int used = snprintf(command, sizeof command, "%s %u %d ", arguments[2], key.type, subkey);
    for (size_t at = 0; at < key.length; at++)
        used += snprintf(command + used, sizeof command - used, "%02x", ((unsigned char *)key.data)[at]);
    FILE *lines = popen(command, "r");
    check(lines, initiator, acceptor);
    return pclose(lines) == 0 ? 0 : 6;
}
