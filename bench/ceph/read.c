/* Reads blocks of a file through libcephfs itself, in order, to compare with: read PATH BYTES SPAN. For each number in a line
   of its input it reads as many blocks, one at a time, and prints the nanoseconds of each in a line. At the offset SPAN it
   starts again. */
#define _FILE_OFFSET_BITS 64
#include <cephfs/libcephfs.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

int main(int count, char **arguments) {
    struct ceph_mount_info *mount;
    if (count != 4 || ceph_create(&mount, NULL) || ceph_conf_read_file(mount, NULL) || ceph_mount(mount, "/"))
        return 1;
    long bytes = atol(arguments[2]), span = atol(arguments[3]), offset = 0, blocks;
    int file = ceph_open(mount, arguments[1], O_RDONLY, 0);
    char *into = malloc(bytes);
    if (file < 0 || !into)
        return 1;
    while (scanf("%ld", &blocks) == 1) {
        for (long number = 0; number < blocks; number++, offset = (offset + bytes) % span) {
            long begin = now();
            if (ceph_read(mount, file, into, bytes, offset) != bytes)
                return 1;
            printf("%ld ", now() - begin);
        }
        printf("\n");
        fflush(stdout);
    }
    ceph_shutdown(mount);
    return 0;
}
