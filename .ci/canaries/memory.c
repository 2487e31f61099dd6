/* With an argument it reads one byte behind an allocation, without one it loses it. valgrind must say both, and
   AddressSanitizer the former. */
#include <stdlib.h>

int main(int count, char **arguments) {
    volatile char *bytes = malloc(64);
    (void)arguments;
    if (count > 1) {
        volatile char behind = bytes[64];
        (void)behind;
        free((void *)bytes);
        return 0;
    }
    bytes = NULL;
    return 0;
}
