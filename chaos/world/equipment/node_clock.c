/* Preloaded: the wall clock and CLOCK_BOOTTIME are what the file NODE_CLOCK says, from now to now.
 *
 * CLOCK_BOOTTIME ahead of CLOCK_MONOTONIC is what sleep of the machine looks like to a process; the
 * monotonic clock stays the kernel's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

struct node_clock {
    long long ahead_ns;
    double gain; /* The wall clock's speed is 1 + gain ... */
    long long since_ns; /* ... since then, by CLOCK_MONOTONIC. */
    long long slept_ns;
};

static volatile const struct node_clock *now;
static int (*kernels)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    kernels = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("NODE_CLOCK");
    if (path == NULL) return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    void *mapped = mmap(NULL, sizeof *now, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || mapped == MAP_FAILED) abort();
    close(file);
    now = mapped;
}

static void add(struct timespec *time, long long ns) {
    ns += time->tv_nsec;
    time->tv_sec += ns / SECOND;
    time->tv_nsec = ns % SECOND;
    if (time->tv_nsec < 0) time->tv_sec -= 1, time->tv_nsec += SECOND;
}

static long long wall_ahead_ns(void) {
    if (now == NULL) return 0;
    struct timespec steady;
    kernels(CLOCK_MONOTONIC, &steady);
    return now->ahead_ns + now->gain * (steady.tv_sec * SECOND + steady.tv_nsec - now->since_ns);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (kernels == NULL) begin(); /* a constructor of another library asks */
    int result = kernels(clock, time);
    if (result != 0 || now == NULL) return result;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) add(time, wall_ahead_ns());
    if (clock == CLOCK_BOOTTIME) add(time, now->slept_ns);
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    at->tv_sec = time.tv_sec;
    at->tv_usec = time.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    if (at != NULL) *at = time.tv_sec;
    return time.tv_sec;
}

/* Who waits until a wall clock's time means that of this file; the kernel would go by its own. */

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    struct timespec at = *until;
    add(&at, -wall_ahead_ns());
    return sem_clockwait(semaphore, CLOCK_REALTIME, &at);
}

int pthread_cond_timedwait(
    pthread_cond_t *restrict condition,
    pthread_mutex_t *restrict mutex,
    const struct timespec *restrict until
) {
    /* A condition does not tell its clock; no machine has been up since 2001. */
    if (until->tv_sec < SECOND)
        return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, until);
    struct timespec at = *until;
    add(&at, -wall_ahead_ns());
    return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, &at);
}
