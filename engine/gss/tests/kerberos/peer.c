/* The other end of a context, by MIT's library alone: what it does with tokens of spinrpc-gss.
 *
 *   peer accept SERVICE
 *   peer initiate TARGET
 *
 * Reads commands, each a line, and answers each with a line:
 *   token HEX            a token of the other end; answers "FLAGS TOKEN", the token may be empty ("-")
 *   mic HEX              answers with the MIC token of these bytes
 *   wrap HEX             answers with the sealed token of these bytes
 *   verify HEX MIC       answers "yes" or "no"
 *   unwrap HEX           answers with the bytes, or "no"
 * An initiator takes "token -" first. */
#include <gssapi/gssapi.h>
#include <gssapi/gssapi_krb5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char line[65536], first[32768], second[32768];
static OM_uint32 minor;
static gss_ctx_id_t context = GSS_C_NO_CONTEXT;
static gss_name_t name;
static gss_cred_id_t credential = GSS_C_NO_CREDENTIAL;

static void need(OM_uint32 major, const char *what) {
    if (GSS_ERROR(major)) {
        fprintf(stderr, "%s failed: %08x %d\n", what, major, (int)minor);
        exit(1);
    }
}

/* The bytes of a word, in place. */
static gss_buffer_desc bytes(char *word) {
    size_t length = 0;
    unsigned value;
    while (sscanf(word + 2 * length, "%2x", &value) == 1) {
        word[length] = (char)value;
        length++;
    }
    return (gss_buffer_desc){length, word};
}

static void answer(gss_buffer_desc buffer) {
    if (buffer.length == 0) printf("-");
    for (size_t at = 0; at < buffer.length; at++) printf("%02x", ((unsigned char *)buffer.value)[at]);
    printf("\n");
}

static void token(int initiates) {
    OM_uint32 major, flags = 0;
    gss_buffer_desc theirs = bytes(first), ours = {0, NULL};
    if (initiates) {
        major = gss_init_sec_context(&minor, credential, &context, name, GSS_C_NO_OID,
            GSS_C_MUTUAL_FLAG | GSS_C_INTEG_FLAG | GSS_C_CONF_FLAG, 0, NULL, &theirs, NULL, &ours, &flags, NULL);
    } else {
        major = gss_accept_sec_context(&minor, &context, credential, &theirs, NULL, NULL, NULL, &ours, &flags, NULL,
            NULL);
    }
    need(major, "establishing");
    printf("%u ", flags);
    answer(ours);
}

static void message(const char *command) {
    gss_buffer_desc theirs = bytes(first), more = bytes(second), ours = {0, NULL};
    int sealed = 1;
    if (strcmp(command, "mic") == 0) {
        need(gss_get_mic(&minor, context, GSS_C_QOP_DEFAULT, &theirs, &ours), command);
    } else if (strcmp(command, "wrap") == 0) {
        need(gss_wrap(&minor, context, 1, GSS_C_QOP_DEFAULT, &theirs, NULL, &ours), command);
    } else if (strcmp(command, "unwrap") == 0) {
        if (GSS_ERROR(gss_unwrap(&minor, context, &theirs, &ours, &sealed, NULL)) || !sealed) {
            printf("no\n");
            return;
        }
    } else {
        printf(GSS_ERROR(gss_verify_mic(&minor, context, &theirs, &more, NULL)) ? "no\n" : "yes\n");
        return;
    }
    answer(ours);
}

int main(int count, char **arguments) {
    if (count != 3) return 64;
    int initiates = strcmp(arguments[1], "initiate") == 0;
    gss_buffer_desc text = {strlen(arguments[2]), arguments[2]};
    need(gss_import_name(&minor, &text, GSS_C_NT_HOSTBASED_SERVICE, &name), "import_name");
    need(gss_acquire_cred(&minor, initiates ? GSS_C_NO_NAME : name, GSS_C_INDEFINITE, GSS_C_NO_OID_SET,
        initiates ? GSS_C_INITIATE : GSS_C_ACCEPT, &credential, NULL, NULL), "acquire_cred");
    while (fgets(line, sizeof line, stdin) != NULL) {
        char command[16];
        first[0] = second[0] = 0;
        if (sscanf(line, "%15s %32767s %32767s", command, first, second) < 2) return 65;
        if (strcmp(command, "token") == 0) token(initiates);
        else message(command);
        fflush(stdout);
    }
    return 0;
}
