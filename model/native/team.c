/* A job is published as a range of items left; whoever takes one off holds an item of it. The caller
 * takes the first, the others the last, so that each finds what it wrote in its own cache.
 *
 *     left      0–7 1–7 1–6 2–6 … 4–4 │ 0–4 … │ …     a thread that comes late finds the job that
 *     done      0 1 2 … 7             │ 0 1 … │ …     is on, or none, and never holds anyone up
 *
 * While an item is held, its job can't end, so that what describes the job stays as it is. A step
 * has some hundred jobs of a few microseconds, hence the spinning: to sleep and be woken costs more
 * than such a job. Between steps the others sleep, and leave their cores to whoever has work.
 */
#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define CACHE_LINE 64
#define PATIENCE 4096

typedef struct {
    int32_t first, stop;
} Items; /* 8 bytes, which processors exchange at once */

struct Team {
    _Alignas(CACHE_LINE) _Atomic Items left;
    _Alignas(CACHE_LINE) atomic_int done;
    _Alignas(CACHE_LINE) Work *work;
    void *context;
    _Alignas(CACHE_LINE) atomic_bool awake;
    bool ending;
    int num_others;
    pthread_mutex_t mutex;
    pthread_cond_t woken;
    pthread_t others[];
};

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool do_one(Team *team, bool from_front)
{
    Items left = atomic_load_explicit(&team->left, memory_order_acquire), after;
    do {
        if (left.first == left.stop)
            return false;
        after = from_front ? (Items){left.first + 1, left.stop} : (Items){left.first, left.stop - 1};
    } while (!atomic_compare_exchange_weak(&team->left, &left, after));
    team->work(team->context, from_front ? left.first : after.stop);
    atomic_fetch_add_explicit(&team->done, 1, memory_order_release);
    return true;
}

static bool sleep_until_woken(Team *team)
{
    pthread_mutex_lock(&team->mutex);
    while (!atomic_load(&team->awake) && !team->ending)
        pthread_cond_wait(&team->woken, &team->mutex);
    bool goes_on = !team->ending;
    pthread_mutex_unlock(&team->mutex);
    return goes_on;
}

static void *live(void *argument)
{
    Team *team = argument;
    while (sleep_until_woken(team))
        for (int idle = 0; atomic_load_explicit(&team->awake, memory_order_relaxed); idle++) {
            if (do_one(team, false))
                idle = 0;
            else if (idle < PATIENCE)
                pause_briefly();
            else
                sched_yield();
        }
    return NULL;
}

Team *team_create(int num_threads)
{
    size_t size = sizeof(Team) + (size_t)num_threads * sizeof(pthread_t);
    Team *team = aligned_alloc(CACHE_LINE, (size + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
    if (team == NULL)
        return NULL;
    atomic_init(&team->left, (Items){0});
    atomic_init(&team->done, 0);
    atomic_init(&team->awake, false);
    team->ending = false;
    pthread_mutex_init(&team->mutex, NULL);
    pthread_cond_init(&team->woken, NULL);
    for (team->num_others = 0; team->num_others < num_threads - 1; team->num_others++)
        if (pthread_create(&team->others[team->num_others], NULL, live, team) != 0) {
            team_destroy(team);
            return NULL;
        }
    return team;
}

void team_destroy(Team *team)
{
    pthread_mutex_lock(&team->mutex);
    team->ending = true;
    pthread_cond_broadcast(&team->woken);
    pthread_mutex_unlock(&team->mutex);
    for (int i = 0; i < team->num_others; i++)
        pthread_join(team->others[i], NULL);
    pthread_cond_destroy(&team->woken);
    pthread_mutex_destroy(&team->mutex);
    free(team);
}

int team_size(const Team *team)
{
    return team->num_others + 1;
}

void team_wake(Team *team)
{
    pthread_mutex_lock(&team->mutex);
    atomic_store(&team->awake, true);
    pthread_cond_broadcast(&team->woken);
    pthread_mutex_unlock(&team->mutex);
}

void team_rest(Team *team)
{
    atomic_store(&team->awake, false);
}

void share(Team *team, int num_items, Work *work, void *context)
{
    if (num_items == 1 || team->num_others == 0) {
        for (int item = 0; item < num_items; item++)
            work(context, item);
        return;
    }
    team->work = work;
    team->context = context;
    atomic_store_explicit(&team->done, 0, memory_order_relaxed);
    atomic_store_explicit(&team->left, ((Items){0, num_items}), memory_order_release);
    while (do_one(team, true))
        ;
    for (int waited = 0; atomic_load_explicit(&team->done, memory_order_acquire) < num_items;)
        if (waited < PATIENCE) {
            waited++;
            pause_briefly();
        } else {
            sched_yield();
        }
}
