// A disk with a volatile write cache, as a plugin of nbdkit: it keeps an image, and a list of all
// that it was told (writes and flushes, in order), from which disk_log makes what a power cut would
// have left. Built by power_cuts.sh.
//
// A record of the list: u64 offset, u32 bytes, u32 kind (0: write, 1: flush), then the bytes.

#define NBDKIT_API_VERSION 2
#define THREAD_MODEL NBDKIT_THREAD_MODEL_SERIALIZE_ALL_REQUESTS

#include <errno.h>
#include <fcntl.h>
#include <nbdkit-plugin.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char* image_path = NULL;
static char* log_path = NULL;
static int image = -1;
static int list = -1;

static int disk_config(const char* key, const char* value) {
  char** path = strcmp(key, "image") == 0 ? &image_path
                : strcmp(key, "log") == 0 ? &log_path
                                          : NULL;
  if (path == NULL) {
    nbdkit_error("no key '%s'; there are image and log", key);
    return -1;
  }
  *path = nbdkit_absolute_path(value);
  return *path == NULL ? -1 : 0;
}

static int disk_get_ready(void) {
  image = open(image_path, O_RDWR | O_CLOEXEC);
  list = open(log_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  if (image < 0 || list < 0) {
    nbdkit_error("cannot open %s and %s: %m", image_path, log_path);
    return -1;
  }
  return 0;
}

static void* disk_open(int readonly) {
  (void)readonly;
  return NBDKIT_HANDLE_NOT_NEEDED;
}

static int64_t disk_size(void* handle) {
  (void)handle;
  struct stat status;
  return fstat(image, &status) == 0 ? (int64_t)status.st_size : -1;
}

static int disk_can_fua(void* handle) {
  (void)handle;
  return NBDKIT_FUA_EMULATE;
}

static int disk_read(void* handle, void* bytes, uint32_t count, uint64_t offset, uint32_t flags) {
  (void)handle;
  (void)flags;
  return pread(image, bytes, count, (off_t)offset) == (ssize_t)count ? 0 : -1;
}

static int note(uint64_t offset, const void* bytes, uint32_t count, uint32_t kind) {
  struct {
    uint64_t offset;
    uint32_t bytes, kind;
  } head = {offset, count, kind};
  struct iovec parts[2] = {{&head, sizeof head}, {(void*)bytes, count}};
  const ssize_t size = (ssize_t)(sizeof head + count);
  return writev(list, parts, count > 0 ? 2 : 1) == size ? 0 : -1;
}

static int disk_write(
    void* handle, const void* bytes, uint32_t count, uint64_t offset, uint32_t flags) {
  (void)handle;
  (void)flags;
  if (note(offset, bytes, count, 0) != 0 ||
      pwrite(image, bytes, count, (off_t)offset) != (ssize_t)count) {
    nbdkit_set_error(EIO);
    return -1;
  }
  return 0;
}

static int disk_flush(void* handle, uint32_t flags) {
  (void)handle;
  (void)flags;
  return note(0, NULL, 0, 1);
}

static struct nbdkit_plugin plugin = {
    .name = "logged-disk",
    .config = disk_config,
    .get_ready = disk_get_ready,
    .open = disk_open,
    .get_size = disk_size,
    .can_fua = disk_can_fua,
    .pread = disk_read,
    .pwrite = disk_write,
    .flush = disk_flush,
};

NBDKIT_REGISTER_PLUGIN(plugin)
