/* Threads that help with a call: with the chunks that it reads and decodes, or the rows it copies.

   They know nothing of Python, so they never wait for its lock. One that makes calls is joined by
   helpers that are idle at that moment, and does all of the work itself if there are none. */

#define _POSIX_C_SOURCE 200809L

#include "export.h"
#include "helpers.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

/* A call under way, on the stack of its thread. */
typedef struct Call {
    Work work;
    void *context;
    int64_t num_wanted, num_helping;
    pthread_cond_t is_left;
    struct Call *next;
} Call;

/* Helpers, and the threads that they help. Each of them, and the owner, holds one reference. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t is_wanted, has_ended;
    Call *calls;
    int64_t num_references, num_helpers, num_idle;
    int is_over;
    /* Those that are not joined yet. */
    pthread_t *threads;
    int64_t num_threads;
} Helpers;

static _Thread_local Helpers *own;
static _Thread_local int64_t waited_ns;

int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Gives up a reference, and the lock. */
static void release(Helpers *helpers) {
    const int is_last = !--helpers->num_references;
    pthread_mutex_unlock(&helpers->lock);
    if (!is_last)
        return;
    pthread_cond_destroy(&helpers->has_ended);
    pthread_cond_destroy(&helpers->is_wanted);
    pthread_mutex_destroy(&helpers->lock);
    free(helpers->threads);
    free(helpers);
}

static void *help(void *argument) {
    Helpers *helpers = argument;
    pthread_mutex_lock(&helpers->lock);
    while (!helpers->is_over) {
        Call *call = helpers->calls;
        while (call && !call->num_wanted)
            call = call->next;
        if (!call) {
            helpers->num_idle++;
            pthread_cond_wait(&helpers->is_wanted, &helpers->lock);
            helpers->num_idle--;
            continue;
        }
        call->num_wanted--;
        call->num_helping++;
        pthread_mutex_unlock(&helpers->lock);
        call->work(call->context);
        pthread_mutex_lock(&helpers->lock);
        /* All parts are begun. */
        call->num_wanted = 0;
        if (!--call->num_helping)
            pthread_cond_signal(&call->is_left);
    }
    helpers->num_helpers--;
    pthread_cond_broadcast(&helpers->has_ended);
    release(helpers);
    return NULL;
}

int has_helpers(void) { return own != NULL; }

void share_work(Work work, void *context, int64_t most_helpers) {
    Helpers *helpers = own;
    if (!helpers || most_helpers <= 0) {
        work(context);
        return;
    }
    Call call = {.work = work, .context = context, .num_wanted = most_helpers};
    pthread_cond_init(&call.is_left, NULL);
    pthread_mutex_lock(&helpers->lock);
    call.next = helpers->calls;
    helpers->calls = &call;
    for (int64_t i = 0; i < most_helpers && i < helpers->num_idle; i++)
        pthread_cond_signal(&helpers->is_wanted);
    pthread_mutex_unlock(&helpers->lock);
    work(context);
    const int64_t begin_ns = now_ns();
    pthread_mutex_lock(&helpers->lock);
    Call **at = &helpers->calls;
    while (*at != &call)
        at = &(*at)->next;
    *at = call.next;
    while (call.num_helping)
        pthread_cond_wait(&call.is_left, &helpers->lock);
    pthread_mutex_unlock(&helpers->lock);
    pthread_cond_destroy(&call.is_left);
    waited_ns += now_ns() - begin_ns;
}

/* Makes helpers without a thread. Returns 0 if there is no memory. */
EXPORT int64_t xloader_make_helpers(void) {
    Helpers *helpers = calloc(1, sizeof(Helpers));
    if (!helpers)
        return 0;
    pthread_mutex_init(&helpers->lock, NULL);
    pthread_cond_init(&helpers->is_wanted, NULL);
    pthread_cond_init(&helpers->has_ended, NULL);
    helpers->num_references = 1;
    return (int64_t)(intptr_t)helpers;
}

/* Starts threads that help; returns how many could be started. To be called once. */
EXPORT int64_t xloader_start_helpers(int64_t address, int64_t num) {
    Helpers *helpers = (Helpers *)(intptr_t)address;
    sigset_t all, before;
    /* Signals are for Python's threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&helpers->lock);
    helpers->threads = malloc((size_t)num * sizeof(pthread_t));
    while (helpers->threads && helpers->num_threads < num && !helpers->is_over) {
        if (pthread_create(&helpers->threads[helpers->num_threads], NULL, help, helpers))
            break;
        helpers->num_threads++;
        helpers->num_references++;
        helpers->num_helpers++;
    }
    num = helpers->num_threads;
    pthread_mutex_unlock(&helpers->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return num;
}

/* From now on, calls of this thread are helped with; not any more if the address is 0. */
EXPORT int64_t xloader_use_helpers(int64_t address) {
    Helpers *helpers = (Helpers *)(intptr_t)address, *before = own;
    own = helpers;
    if (helpers) {
        pthread_mutex_lock(&helpers->lock);
        helpers->num_references++;
        pthread_mutex_unlock(&helpers->lock);
    }
    if (before) {
        pthread_mutex_lock(&before->lock);
        release(before);
    }
    return 0;
}

/* Nanoseconds that calls of this thread have waited for helpers so far, with nothing else to do. */
EXPORT int64_t xloader_waited_ns(void) { return waited_ns; }

/* Ends the threads, and waits for that, up to a time. May be repeated. Returns how many are still at
   work, as one that is stuck in a read. */
EXPORT int64_t xloader_end_helpers(int64_t address, int64_t most_ns) {
    Helpers *helpers = (Helpers *)(intptr_t)address;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    most_ns += until.tv_nsec;
    until.tv_sec += (time_t)(most_ns / 1000000000);
    until.tv_nsec = (long)(most_ns % 1000000000);
    pthread_mutex_lock(&helpers->lock);
    helpers->is_over = 1;
    pthread_cond_broadcast(&helpers->is_wanted);
    int64_t num_left = helpers->num_helpers;
    while (num_left && !pthread_cond_timedwait(&helpers->has_ended, &helpers->lock, &until))
        num_left = helpers->num_helpers;
    pthread_t *threads = NULL;
    int64_t num_threads = 0;
    if (!num_left) {
        threads = helpers->threads;
        num_threads = helpers->num_threads;
        helpers->threads = NULL;
        helpers->num_threads = 0;
    }
    pthread_mutex_unlock(&helpers->lock);
    for (int64_t i = 0; i < num_threads; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    return num_left;
}

/* Gives up the reference of the owner, who must not use the address again, and ends the threads. */
EXPORT int64_t xloader_drop_helpers(int64_t address) {
    Helpers *helpers = (Helpers *)(intptr_t)address;
    pthread_mutex_lock(&helpers->lock);
    helpers->is_over = 1;
    pthread_cond_broadcast(&helpers->is_wanted);
    for (int64_t i = 0; i < helpers->num_threads; i++)
        pthread_detach(helpers->threads[i]);
    helpers->num_threads = 0;
    release(helpers);
    return 0;
}
