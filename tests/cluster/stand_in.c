/* A SPANK plugin with the option of a container plugin: every task writes into the file that the
 * option names where it runs, its number, and on how many cores. */

#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(stand_in, 1)

static char image[4096];

static int take(int value, const char* given, int remote) {
    (void)value;
    (void)remote;
    snprintf(image, sizeof image, "%s", given);
    return ESPANK_SUCCESS;
}

static struct spank_option option = {"container-image", "PATH", "Where tasks are noted.", 1, 0, take};

int slurm_spank_init(spank_t spank, int count, char* words[]) {
    (void)count;
    (void)words;
    return spank_option_register(spank, &option);
}

int slurm_spank_task_init(spank_t spank, int count, char* words[]) {
    (void)count;
    (void)words;
    if (image[0] == '\0')
        return ESPANK_SUCCESS;
    uint32_t task = 0;
    cpu_set_t cores;
    char host[256];
    char line[512];
    spank_get_item(spank, S_TASK_GLOBAL_ID, &task);
    sched_getaffinity(0, sizeof cores, &cores);
    gethostname(host, sizeof host);
    int length = snprintf(line, sizeof line, "%s %u %d\n", host, task, CPU_COUNT(&cores));
    FILE* file = fopen(image, "a");
    if (file == NULL)
        return ESPANK_ERROR;
    fwrite(line, 1, (size_t)length, file);
    fclose(file);
    return ESPANK_SUCCESS;
}
