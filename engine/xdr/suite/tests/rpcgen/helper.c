/*
 * Decodes and encodes with the code of rpcgen. Requests on standard input: the index of a type, a length,
 * and so many bytes. Answers on standard output: whether they begin with a value, its bytes, whether it
 * could be written again, the length of its encoding, and that. Words are of this machine.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <rpc/rpc.h>
#include "table.h"

static const struct {
    xdrproc_t code;
    size_t size;
} types[] = { TYPES };

static char in[1 << 20], out[1 << 20];

static int get(void *to, size_t bytes)
{
    return fread(to, 1, bytes, stdin) == bytes;
}

int main(void)
{
    uint32_t index, length, answer[4];

    while (get(&index, sizeof index) && get(&length, sizeof length)) {
        XDR from, to;
        void *value;

        if (index >= sizeof types / sizeof types[0] || length > sizeof in || !get(in, length))
            return 1;
        value = calloc(1, types[index].size);
        xdrmem_create(&from, in, length, XDR_DECODE);
        answer[0] = types[index].code(&from, value) != 0;
        answer[1] = xdr_getpos(&from);
        answer[2] = answer[3] = 0;
        if (answer[0]) {
            xdrmem_create(&to, out, sizeof out, XDR_ENCODE);
            answer[2] = types[index].code(&to, value) != 0;
            answer[3] = answer[2] ? xdr_getpos(&to) : 0;
        }
        xdr_free(types[index].code, value);
        free(value);
        if (fwrite(answer, sizeof answer, 1, stdout) != 1
            || fwrite(out, 1, answer[3], stdout) != answer[3])
            return 1;
        fflush(stdout);
    }
    return 0;
}
