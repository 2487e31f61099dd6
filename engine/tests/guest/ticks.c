/*
 * Prints the rate of the processor's time-stamp counter in kHz. Built by kit; run asks it, so that a
 * guest's kernel need not measure the rate itself.
 */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

struct reading {
    uint64_t ticks;
    uint64_t ns;
};

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* The best of many: others may have the processor between the two clocks. */
static struct reading reading(void)
{
    struct reading best = {0, 0};
    uint64_t least = UINT64_MAX;

    for (int i = 0; i < 100; i++) {
        uint64_t before = __rdtsc();
        uint64_t ns = now_ns();
        uint64_t took = __rdtsc() - before;

        if (took < least) {
            least = took;
            best = (struct reading){before + took / 2, ns};
        }
    }
    return best;
}

int main(void)
{
    struct timespec pause = {0, 20000000};
    struct reading start = reading(), end;

    nanosleep(&pause, NULL);
    end = reading();
    printf("%.0f\n", (double)(end.ticks - start.ticks) * 1e6 / (double)(end.ns - start.ns));
    return 0;
}
