/* What all parts of the zoo use: the profile, the libraries below, the log, and the time of commands. */
#define _GNU_SOURCE
#include "zoo.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "zoo: no function %s\n", name);
        abort();
    }
    return found;
}

static const struct profile *chosen;

static void choose(void) {
    const char *name = getenv("SPINRPC_ZOO");
    for (chosen = profiles; chosen->name; chosen++)
        if (name && !strcmp(name, chosen->name)) return;
    fprintf(stderr, "zoo: no profile \"%s\" (SPINRPC_ZOO)\n", name ? name : "");
    abort();
}

const struct profile *profile(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose);
    return chosen;
}

void record(const char *format, ...) {
    const char *file = getenv("SPINRPC_ZOO_LOG");
    if (!file) return;
    char line[256], thread[16] = "";
    pthread_getname_np(pthread_self(), thread, sizeof thread);
    int length = snprintf(line, sizeof line, "%s %d %s: ", profile()->name, getpid(), thread);
    va_list values;
    va_start(values, format);
    length += vsnprintf(line + length, sizeof line - 1 - (size_t)length, format, values);
    va_end(values);
    if (length > (int)sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    /* One write for each line: several processes share the file. */
    int fd = open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, line, (size_t)length) < 0) return;
    close(fd);
}

void command(const char *what) {
    if (!profile()->command_us) return;
    char thread[16] = "";
    pthread_getname_np(pthread_self(), thread, sizeof thread);
    if (!strncmp(thread, "spinrpc-core", 12)) record("on a core: %s", what);
    usleep(profile()->command_us);
}
