/* A stand-in for NVIDIA's libnvidia-ml.so.1: it answers the calls that rlguard makes with what a state file says.

   The file is RLGUARD_NVML_STATE, else /run/rlguard-lab/nvml/state, and is read anew at each call, so that whoever
   rewrites it (whole, by rename) changes the machine under a running process. Lines are `key=value`, later ones win:

     count=2                              devices that are there
     driver=550.54.15                     version of the driver
     device.0.uuid= .name= .serial=       texts
     device.0.pci=00000000:9B:00.0        as NVML spells it
     device.0.minor=0
     device.0.ecc.volatile.corrected=0    also .uncorrected, and ecc.aggregate.*
     device.0.remap.corrected=0           also .uncorrected .pending .failure
     device.0.banks.max=640               banks by spare rows left, also .high .partial .low .none
     device.0.pages.pending=0
     device.0.throttle=0x0                mask of clocks event reasons
     device.0.temperature=41              degrees Celsius, .temperature.slowdown
     device.0.power=70000                 milliwatts
     device.0.link.0=1                    1 up, 0 down; links are counted from 0
     device.0.field.230=0                 any field value by its number (230: recovery action, 52: NVLink replays)
     device.0.fabric.state=3              also .status .health
     device.0.lost=1                      each call on it answers "GPU is lost"
     error.nvmlDeviceGetUUID=999          the call answers this code; device.0.error.CALL=N for one device alone
     hang.nvmlDeviceGetUUID=1             the call does not return as long as this stands; also device.0.hang.CALL=1
     xid.1=0 79                           event number 1 (they count up): device 0 had Xid 79

   What the file does not say is "not supported"; without a file the driver is not loaded. One thread only. */

#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15
};
enum { FILE_LIMIT = 1 << 18, KEY_LIMIT = 160, FABRIC_V2 = 0x02000024, UNSIGNED_LONG_LONG = 3, NO_DEVICE = -1 };
static const uint64_t XID_EVENT = 8;
static const struct timespec PAUSE = {0, 50 * 1000 * 1000};

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};
struct field_value {
    uint32_t field, scope;
    int64_t timestamp, latency;
    uint32_t type, code;
    uint64_t value;
};
struct fabric_info {
    uint32_t version;
    uint8_t cluster[16];
    uint32_t status, clique, state, health;
};
struct event_data {
    void *device;
    uint64_t type, data;
    uint32_t gpu_instance, compute_instance;
};
struct banks {
    unsigned max, high, partial, low, none;
};

static char state[FILE_LIMIT];
static int has_orders;
static int initialised;
static unsigned long last_event; /* its number; 0: none was told yet */

/* True when there is a state file; what it says is then in `state`, read only if it is another file than last time. */
static int load(void)
{
    static struct stat last;
    const char *path = getenv("RLGUARD_NVML_STATE");
    struct stat now;
    FILE *file = fopen(path && *path ? path : "/run/rlguard-lab/nvml/state", "r");
    if (!file || fstat(fileno(file), &now)) {
        memset(&last, 0, sizeof last);
        state[0] = '\0';
    } else if (now.st_ino != last.st_ino || now.st_size != last.st_size || now.st_mtim.tv_sec != last.st_mtim.tv_sec ||
               now.st_mtim.tv_nsec != last.st_mtim.tv_nsec) {
        last = now;
        state[fread(state, 1, sizeof state - 1, file)] = '\0';
    }
    if (file)
        fclose(file);
    has_orders = strstr(state, "hang.") || strstr(state, "error.");
    return file != NULL;
}

/* The text after `key=`, up to the end of its line, in `value`; false where no line has the key. */
static int look_up(const char *key, char *value, size_t size)
{
    size_t length = strlen(key);
    int found = 0;
    for (const char *line = state; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0 && line[length] == '=') {
            snprintf(value, size, "%.*s", (int)strcspn(line + length + 1, "\r\n"), line + length + 1);
            found = 1;
        }
    }
    return found;
}

static int number(const char *key, unsigned long long *value)
{
    char text[64];
    char *end;
    if (!look_up(key, text, sizeof text))
        return 0;
    *value = strtoull(text, &end, 0);
    return end != text;
}

static void key_of(char *key, int device, const char *name, const char *of)
{
    if (device == NO_DEVICE)
        snprintf(key, KEY_LIMIT, "%s%s", name, of);
    else
        snprintf(key, KEY_LIMIT, "device.%d.%s%s", device, name, of);
}

static int ordered(int device, const char *what, const char *call, unsigned long long *value)
{
    char key[KEY_LIMIT];
    if (!has_orders)
        return 0;
    key_of(key, NO_DEVICE, what, call);
    if (number(key, value) && *value)
        return 1;
    key_of(key, device, what, call);
    return device != NO_DEVICE && number(key, value) && *value;
}

static int is_lost(int device)
{
    char key[KEY_LIMIT];
    unsigned long long lost = 0;
    key_of(key, device, "lost", "");
    return device != NO_DEVICE && number(key, &lost) && lost;
}

/* What every call begins with: the file as it is now, and what it orders for this call. */
static int begin(const char *call, int device)
{
    unsigned long long order;
    int there = load();
    while (ordered(device, "hang.", call, &order)) {
        nanosleep(&PAUSE, NULL);
        there = load();
    }
    if (ordered(device, "error.", call, &order))
        return (int)order;
    if (!there)
        return DRIVER_NOT_LOADED;
    return is_lost(device) ? GPU_IS_LOST : SUCCESS;
}

static int index_of(const void *device)
{
    return (int)(intptr_t)device - 1;
}

static void *handle_of(int index)
{
    return (void *)(intptr_t)(index + 1);
}

static int device_number(const char *call, const void *device, const char *name, unsigned long long *value)
{
    char key[KEY_LIMIT];
    int code = begin(call, index_of(device));
    if (code)
        return code;
    key_of(key, index_of(device), name, "");
    return number(key, value) ? SUCCESS : NOT_SUPPORTED;
}

static int device_unsigned(const char *call, const void *device, const char *name, unsigned *value)
{
    unsigned long long wide = 0;
    int code = device_number(call, device, name, &wide);
    *value = (unsigned)wide;
    return code;
}

static int device_text(const char *call, const void *device, const char *name, char *text, unsigned size)
{
    char key[KEY_LIMIT];
    int code = begin(call, index_of(device));
    if (code)
        return code;
    key_of(key, index_of(device), name, "");
    return look_up(key, text, size) ? SUCCESS : NOT_SUPPORTED;
}

int nvmlInitWithFlags(unsigned flags)
{
    int code = begin(__func__, NO_DEVICE);
    (void)flags;
    initialised = initialised || code == SUCCESS;
    return code;
}

int nvmlShutdown(void)
{
    initialised = 0;
    return begin(__func__, NO_DEVICE);
}

const char *nvmlErrorString(int code)
{
    (void)code;
    return "an error that the lab's NVML was told to answer";
}

int nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    int code = begin(__func__, NO_DEVICE);
    if (code)
        return code;
    return look_up("driver", version, size) ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    unsigned long long devices = 0;
    int code = begin(__func__, NO_DEVICE);
    if (code == SUCCESS && !initialised)
        code = UNINITIALIZED;
    if (code == SUCCESS)
        number("count", &devices);
    *count = (unsigned)devices;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    unsigned long long devices = 0;
    int code = begin(__func__, (int)index);
    *device = handle_of((int)index);
    number("count", &devices);
    return code == SUCCESS && index >= devices ? INVALID_ARGUMENT : code;
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *info)
{
    memset(info, 0, sizeof *info);
    int code = device_text(__func__, device, "pci", info->bus_id, sizeof info->bus_id);
    sscanf(info->bus_id, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    return code;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size)
{
    return device_text(__func__, device, "uuid", uuid, size);
}

int nvmlDeviceGetName(void *device, char *name, unsigned size)
{
    return device_text(__func__, device, "name", name, size);
}

int nvmlDeviceGetSerial(void *device, char *serial, unsigned size)
{
    return device_text(__func__, device, "serial", serial, size);
}

int nvmlDeviceGetMinorNumber(void *device, unsigned *minor)
{
    return device_unsigned(__func__, device, "minor", minor);
}

int nvmlDeviceGetTotalEccErrors(void *device, unsigned type, unsigned counter, unsigned long long *count)
{
    static const char *const names[2][2] = {
        {"ecc.volatile.corrected", "ecc.aggregate.corrected"},
        {"ecc.volatile.uncorrected", "ecc.aggregate.uncorrected"}};
    return type > 1 || counter > 1 ? INVALID_ARGUMENT : device_number(__func__, device, names[type][counter], count);
}

int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failure)
{
    int code = device_unsigned(__func__, device, "remap.corrected", corrected);
    code = code ? code : device_unsigned(__func__, device, "remap.uncorrected", uncorrected);
    code = code ? code : device_unsigned(__func__, device, "remap.pending", pending);
    return code ? code : device_unsigned(__func__, device, "remap.failure", failure);
}

int nvmlDeviceGetRowRemapperHistogram(void *device, struct banks *banks)
{
    int code = device_unsigned(__func__, device, "banks.max", &banks->max);
    code = code ? code : device_unsigned(__func__, device, "banks.high", &banks->high);
    code = code ? code : device_unsigned(__func__, device, "banks.partial", &banks->partial);
    code = code ? code : device_unsigned(__func__, device, "banks.low", &banks->low);
    return code ? code : device_unsigned(__func__, device, "banks.none", &banks->none);
}

int nvmlDeviceGetRetiredPagesPendingStatus(void *device, unsigned *pending)
{
    return device_unsigned(__func__, device, "pages.pending", pending);
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons)
{
    return device_number(__func__, device, "throttle", reasons);
}

int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *degrees)
{
    return sensor ? INVALID_ARGUMENT : device_unsigned(__func__, device, "temperature", degrees);
}

int nvmlDeviceGetTemperatureThreshold(void *device, unsigned threshold, unsigned *degrees)
{
    return threshold == 1 ? device_unsigned(__func__, device, "temperature.slowdown", degrees) : NOT_SUPPORTED;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    return device_unsigned(__func__, device, "power", milliwatts);
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active)
{
    char name[32];
    snprintf(name, sizeof name, "link.%u", link);
    return device_unsigned(__func__, device, name, active);
}

int nvmlDeviceGetFieldValues(void *device, int count, struct field_value *values)
{
    int code = begin(__func__, index_of(device));
    for (int at = 0; code == SUCCESS && at < count; at++) {
        char key[KEY_LIMIT];
        unsigned long long value = 0;
        snprintf(key, sizeof key, "device.%d.field.%u", index_of(device), values[at].field);
        values[at].code = number(key, &value) ? SUCCESS : NOT_SUPPORTED;
        values[at].type = UNSIGNED_LONG_LONG;
        values[at].value = value;
    }
    return code;
}

int nvmlDeviceGetGpuFabricInfoV(void *device, struct fabric_info *info)
{
    if (info->version != FABRIC_V2)
        return 25; /* argument version mismatch */
    int code = device_unsigned(__func__, device, "fabric.state", &info->state);
    code = code ? code : device_unsigned(__func__, device, "fabric.status", &info->status);
    return code ? code : device_unsigned(__func__, device, "fabric.health", &info->health);
}

/* The next event after the last one told: its number, 0 if there is none. */
static unsigned long next_event(int *device, unsigned *xid)
{
    unsigned long next = 0;
    for (const char *line = state; line; line = strchr(line, '\n')) {
        unsigned long event;
        int of;
        unsigned code;
        line += *line == '\n';
        if (strncmp(line, "xid.", 4) != 0 || sscanf(line, "xid.%lu=%d %u", &event, &of, &code) != 3 ||
            event <= last_event || (next && event > next))
            continue;
        next = event;
        *device = of;
        *xid = code;
    }
    return next;
}

int nvmlEventSetCreate(void **set)
{
    int code = begin(__func__, NO_DEVICE);
    int device;
    unsigned xid;
    *set = handle_of(0);
    for (unsigned long event; (event = next_event(&device, &xid)) != 0;)
        last_event = event; /* what happened before is not told */
    return code;
}

int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *types)
{
    *types = XID_EVENT;
    return begin(__func__, index_of(device));
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set)
{
    (void)types;
    (void)set;
    return begin(__func__, index_of(device));
}

int nvmlEventSetWait_v2(void *set, struct event_data *data, unsigned milliseconds)
{
    (void)set;
    for (unsigned waited = 0;; waited += 50) {
        int device = 0;
        unsigned xid = 0;
        int code = begin(__func__, NO_DEVICE);
        unsigned long event = next_event(&device, &xid);
        if (code)
            return code;
        if (event) {
            last_event = event;
            memset(data, 0, sizeof *data);
            data->device = handle_of(device);
            data->type = XID_EVENT;
            data->data = xid;
            return SUCCESS;
        }
        if (waited >= milliseconds)
            return TIMEOUT;
        nanosleep(&PAUSE, NULL);
    }
}

int nvmlEventSetFree(void *set)
{
    (void)set;
    return begin(__func__, NO_DEVICE);
}
