/*
 * ONC RPC over TCP with libtirpc, measured like spinperf: `serve` answers on a port of 127.0.0.1
 * that it prints, until it is killed; `run` measures for a second and prints `key value` lines.
 * bench/peers/sunrpc/measure runs each on its own core.
 *
 *     sunrpc serve
 *     sunrpc run PORT null|echo|read DEPTH
 *
 * A libtirpc client has one call in flight, so DEPTH calls need as many threads and connections.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <rpc/rpc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    PROGRAM = 0x20005666, /* in the range assigned by sites */
    VERSION = 1,
    ECHO = 1,
    READ = 2,
    ECHO_BYTES = 64,
    READ_BYTES = 1 << 20,
    DEPTH_MAX = 64,
    SAMPLES_MAX = 4 << 20,
};

static const uint64_t WARM_UP_NS = 200000000, MEASURED_NS = 1000000000;
static const struct timeval TIMEOUT = {10, 0};

static void die(const char *what)
{
    fprintf(stderr, "sunrpc: %s\n", what);
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Without TCP_NODELAY, data waits for a delayed acknowledgement. */
static void send_at_once(int socket)
{
    int yes = 1;
    if (setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) != 0)
        die("TCP_NODELAY");
}

/* Opaque data of variable length, in preallocated memory. */
struct data {
    char *bytes;
    u_int length;
    u_int capacity;
};

static bool_t xdr_data(XDR *xdr, void *argument)
{
    struct data *data = argument;
    return xdr_bytes(xdr, &data->bytes, &data->length, data->capacity);
}

static bool_t xdr_nothing(XDR *xdr, void *argument)
{
    (void)xdr;
    (void)argument;
    return TRUE;
}

/* ---- server ---- */

static char served[READ_BYTES];

static void dispatch(struct svc_req *request, SVCXPRT *transport)
{
    char received[ECHO_BYTES];
    struct data echo = {received, 0, sizeof received}, read = {served, sizeof served, sizeof served};

    switch (request->rq_proc) {
    case NULLPROC:
        svc_sendreply(transport, (xdrproc_t)xdr_nothing, NULL);
        return;
    case ECHO:
        if (!svc_getargs(transport, (xdrproc_t)xdr_data, (char *)&echo)) {
            svcerr_decode(transport);
            return;
        }
        svc_sendreply(transport, (xdrproc_t)xdr_data, (char *)&echo);
        return;
    case READ:
        svc_sendreply(transport, (xdrproc_t)xdr_data, (char *)&read);
        return;
    default:
        svcerr_noproc(transport);
    }
}

static int serve(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    SVCXPRT *transport;

    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0
        || listen(listener, DEPTH_MAX) != 0 || getsockname(listener, (struct sockaddr *)&address, &length) != 0)
        die("cannot listen");
    send_at_once(listener); /* connections inherit it */
    transport = svc_vc_create(listener, 0, 0);
    /* Protocol 0: does not register with rpcbind, which need not run. */
    if (transport == NULL || !svc_reg(transport, PROGRAM, VERSION, dispatch, NULL))
        die("cannot serve");
    printf("listening %d\n", ntohs(address.sin_port));
    fflush(stdout);
    svc_run();
    return 1;
}

/* ---- client ---- */

struct caller {
    pthread_t thread;
    CLIENT *client;
    uint64_t calls;
};

static int procedure;
static atomic_bool measuring, stopping;

static CLIENT *connected(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int socket_ = socket(AF_INET, SOCK_STREAM, 0);
    struct netbuf server = {sizeof address, sizeof address, &address};
    CLIENT *client;

    if (socket_ < 0 || connect(socket_, (struct sockaddr *)&address, sizeof address) != 0)
        die("cannot connect");
    send_at_once(socket_);
    client = clnt_vc_create(socket_, &server, PROGRAM, VERSION, 0, 0);
    if (client == NULL)
        die(clnt_spcreateerror("no client"));
    return client;
}

static void call(CLIENT *client, char *buffer)
{
    static char sent[ECHO_BYTES] = "sixty-four bytes that come back as they were sent";
    struct data arguments = {sent, sizeof sent, sizeof sent}, results = {buffer, 0, READ_BYTES};
    xdrproc_t encode = (xdrproc_t)(procedure == ECHO ? xdr_data : xdr_nothing);
    xdrproc_t decode = (xdrproc_t)(procedure == NULLPROC ? xdr_nothing : xdr_data);

    if (clnt_call(client, procedure, encode, &arguments, decode, &results, TIMEOUT) != RPC_SUCCESS)
        die(clnt_sperror(client, "call"));
    if (results.length != (procedure == NULLPROC ? 0 : procedure == ECHO ? ECHO_BYTES : READ_BYTES))
        die("a reply of another length");
    if (procedure == ECHO && memcmp(buffer, sent, sizeof sent) != 0)
        die("what came back is not what was sent");
}

static void *call_on(void *argument)
{
    struct caller *caller = argument;
    char *buffer = malloc(READ_BYTES);

    if (buffer == NULL)
        die("no memory");
    while (!atomic_load_explicit(&stopping, memory_order_relaxed)) {
        call(caller->client, buffer);
        caller->calls += atomic_load_explicit(&measuring, memory_order_relaxed);
    }
    free(buffer);
    return NULL;
}

static void pause_ns(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    nanosleep(&t, NULL);
}

static void print_count(uint64_t count, uint64_t elapsed_ns, int depth)
{
    printf("count %llu\nelapsed_ns %llu\nrate_per_second %.3f\ndepth %d\n", (unsigned long long)count,
        (unsigned long long)elapsed_ns, 1e9 * (double)count / (double)elapsed_ns, depth);
}

static void run_threads(int port, int depth)
{
    static struct caller callers[DEPTH_MAX];
    uint64_t began, elapsed, calls = 0;

    for (int i = 0; i < depth; i++) {
        callers[i].client = connected(port);
        if (pthread_create(&callers[i].thread, NULL, call_on, &callers[i]) != 0)
            die("no thread");
    }
    pause_ns(WARM_UP_NS);
    began = now_ns();
    atomic_store(&measuring, true);
    pause_ns(MEASURED_NS);
    atomic_store(&measuring, false);
    elapsed = now_ns() - began;
    atomic_store(&stopping, true);
    for (int i = 0; i < depth; i++) {
        pthread_join(callers[i].thread, NULL);
        calls += callers[i].calls;
        clnt_destroy(callers[i].client);
    }
    print_count(calls, elapsed, depth);
}

static int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void run_one(int port)
{
    CLIENT *client = connected(port);
    uint32_t *times_ns = malloc(SAMPLES_MAX * sizeof *times_ns);
    char *buffer = malloc(READ_BYTES);
    uint64_t warm = now_ns(), began, before, now;
    size_t count = 0;

    if (times_ns == NULL || buffer == NULL)
        die("no memory");
    while (now_ns() - warm < WARM_UP_NS)
        call(client, buffer);
    began = before = now_ns();
    while (before - began < MEASURED_NS && count < SAMPLES_MAX) {
        call(client, buffer);
        now = now_ns();
        times_ns[count++] = now - before > UINT32_MAX ? UINT32_MAX : (uint32_t)(now - before);
        before = now;
    }
    qsort(times_ns, count, sizeof *times_ns, ascending);
    print_count(count, before - began, 1);
    printf("min_ns %u\np50_ns %u\n", times_ns[0], times_ns[count / 2]);
    if (procedure == READ)
        printf("bytes %d\n", READ_BYTES);
    clnt_destroy(client);
    free(buffer);
    free(times_ns);
}

int main(int count, char **words)
{
    static const char *const NAMES[] = {"null", "echo", "read"};
    int port, depth;

    if (count == 2 && strcmp(words[1], "serve") == 0)
        return serve();
    if (count != 5 || strcmp(words[1], "run") != 0)
        die("serve | run PORT null|echo|read DEPTH");
    port = atoi(words[2]);
    depth = atoi(words[4]);
    while (procedure < 3 && strcmp(words[3], NAMES[procedure]) != 0)
        procedure++;
    if (port <= 0 || procedure == 3 || depth < 1 || depth > DEPTH_MAX)
        die("run PORT null|echo|read 1..64");
    if (depth == 1)
        run_one(port);
    else
        run_threads(port, depth);
    return 0;
}
