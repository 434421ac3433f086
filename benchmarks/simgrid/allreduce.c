/* An all_reduce under SMPI, timed on its simulated clock: a ring of send and receive, or MPI_Allreduce itself.

   allreduce ring BYTES...     the ring that allfold has, chunk by chunk
   allreduce own BYTES...      whatever --cfg=smpi/allreduce says
   Prints "BYTES SECONDS" a line. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void ring(float *buffer, float *received, long count, int rank, int ranks) {
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
    for (int step = 0; step < 2 * (ranks - 1); ++step) {
        int reduces = step < ranks - 1, turn = reduces ? step : step - (ranks - 1);
        long out = ((rank - turn - reduces) % ranks + ranks) % ranks;
        long in = ((rank - turn - reduces - 1) % ranks + ranks) % ranks;
        long from = out * count / ranks, to = (out + 1) * count / ranks;
        long begin = in * count / ranks, end = (in + 1) * count / ranks;
        MPI_Sendrecv(buffer + from, (int)(to - from), MPI_FLOAT, right, 0, received, (int)(end - begin), MPI_FLOAT, left,
                     0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (long i = begin; i < end; ++i) buffer[i] = received[i - begin] + (reduces ? buffer[i] : 0);
    }
}

/* Ranks leave a barrier one latency apart; so they agree on a moment of the simulated clock, and wait for it. */
static double start_together(void) {
    double now = MPI_Wtime(), begin;
    MPI_Allreduce(&now, &begin, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    begin += 1;
    double left = begin - MPI_Wtime();
    struct timespec wait = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
    nanosleep(&wait, NULL);
    return begin;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 2; i < argc; ++i) {
        long bytes = atol(argv[i]), count = bytes / (long)sizeof(float);
        float *buffer = malloc(bytes), *other = malloc(bytes);
        for (long j = 0; j < count; ++j) buffer[j] = 1;
        double begin = start_together(), took, longest;
        if (strcmp(argv[1], "ring") == 0) {
            ring(buffer, other, count, rank, ranks);
        } else {
            MPI_Allreduce(buffer, other, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            memcpy(buffer, other, bytes);
        }
        took = MPI_Wtime() - begin;
        MPI_Reduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        for (long j = 0; j < count; ++j)
            if (buffer[j] != ranks) {
                fprintf(stderr, "rank %d: element %ld is %f, not %d\n", rank, j, buffer[j], ranks);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
        if (rank == 0) printf("%ld %.9e\n", bytes, longest);
        free(buffer);
        free(other);
    }
    MPI_Finalize();
    return 0;
}
