/* Threads that share out the items of one job after another. Knows nothing of the jobs. */
#ifndef OCTAVO_TEAM_H
#define OCTAVO_TEAM_H

typedef struct Team Team;
typedef void Work(void *context, int item);

/* NULL if the system grants no thread or memory. The caller of `share` is one of the threads. */
Team *team_create(int num_threads);
void team_destroy(Team *team);

/* With the caller. */
int team_size(const Team *team);

/* Between these two, the others watch for jobs and keep their cores busy; outside, they sleep. */
void team_wake(Team *team);
void team_rest(Team *team);

/* Calls work(context, item) for each item below num_items; returns when all are done. */
void share(Team *team, int num_items, Work *work, void *context);

#endif
