/* Copies from a file that is mapped: a page that the disk cannot give, or that the file has no more, is a failed
   copy, not the end of the process.

   The kernel tells of such a byte by SIGBUS, to the thread that reads it. While a copy is under way the handler
   jumps back into it; any other SIGBUS goes where it went before (faulthandler, or the end). Where somebody else
   put a handler later there is no guard, and nobody copies. One thread copies at a time. */
#ifndef KEELMQ_GUARDED_H
#define KEELMQ_GUARDED_H
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

static struct sigaction keelmq_bus_before;
static volatile sig_atomic_t keelmq_bus_installed;
static char keelmq_copies;
static volatile sig_atomic_t keelmq_copying;
static pthread_t keelmq_copier;
static sigjmp_buf keelmq_copy_began;

static void keelmq_on_bus(int number, siginfo_t *info, void *context) {
    (void)context;
    if (keelmq_copying && info->si_code > 0 && pthread_equal(pthread_self(), keelmq_copier)) {
        siglongjmp(keelmq_copy_began, 1);
    }
    /* Until the next guard. */
    keelmq_bus_installed = 0;
    sigaction(SIGBUS, &keelmq_bus_before, NULL);
    if (info->si_code <= 0) raise(number); /* somebody sent it; else the byte is read again */
}

/* Whether copies are guarded. Of one thread at a time. */
static int keelmq_guard_stands(void) {
    struct sigaction now;
    if (sigaction(SIGBUS, NULL, &now) != 0) return 0;
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == keelmq_on_bus) return 1;
    if (keelmq_bus_installed) return 0;
    keelmq_bus_installed = 1;
    now.sa_sigaction = keelmq_on_bus;
    now.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigemptyset(&now.sa_mask);
    return sigaction(SIGBUS, &now, &keelmq_bus_before) == 0;
}

/* Put ``count`` pieces one behind the other; ``from`` is byte ``first`` of their file. Whether all came. */
static int keelmq_copy_guarded(uint8_t *to, const uint8_t *from, int64_t first, const int64_t *places,
                               const int32_t *sizes, int count) {
    int k;
    if (__atomic_test_and_set(&keelmq_copies, __ATOMIC_ACQUIRE)) return 0;
    keelmq_copier = pthread_self();
    if (sigsetjmp(keelmq_copy_began, 0) != 0) {
        keelmq_copying = 0;
        __atomic_clear(&keelmq_copies, __ATOMIC_RELEASE);
        return 0;
    }
    keelmq_copying = 1;
    __asm__ volatile("" ::: "memory");
    for (k = 0; k < count; k++) {
        memcpy(to, from + (places[k] - first), (size_t)sizes[k]);
        to += sizes[k];
    }
    __asm__ volatile("" ::: "memory");
    keelmq_copying = 0;
    __atomic_clear(&keelmq_copies, __ATOMIC_RELEASE);
    return 1;
}
#endif
