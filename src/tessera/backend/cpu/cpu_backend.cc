#include "tessera/backend/cpu/cpu_backend.h"

#include <cerrno>
#include <cstring>

#include <sys/mman.h>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/dispatch.h"
#include "tessera/base/error.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

// Pages come from the kernel on first touch; huge ones where it offers them, since kernels stream
// through hundreds of megabytes.
class MappedArena final : public HostArena {
 public:
  explicit MappedArena(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    if (bytes_ == 0) {
      return;
    }
    void* address = ::mmap(nullptr,
                           bytes_,
                           PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                           -1,
                           0);
    TESSERA_REQUIRE(address != MAP_FAILED,
                    ErrorCode::kOutOfMemory,
                    "cannot allocate {}: {}",
                    format_bytes(bytes),
                    std::strerror(errno));
    data_ = static_cast<std::byte*>(address);
    ::madvise(data_, bytes_, MADV_HUGEPAGE);
  }

  ~MappedArena() override {
    if (data_ != nullptr) {
      ::munmap(data_, bytes_);
    }
  }

  MappedArena(const MappedArena&) = delete;
  MappedArena& operator=(const MappedArena&) = delete;

  std::byte* data() override { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, CommunicatorOf communicator_of, CpuCommStream comm)
      : comm_(comm.threads), compute_(threads), abort_(std::move(comm.abort)) {
    compute_.set_communicators(std::move(communicator_of));
    comm_.set_communicators(std::move(comm.communicator_of));
  }

  std::string_view name() const override { return "cpu"; }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override {
    return std::make_unique<MappedArena>(bytes);
  }

  std::int64_t workspace_bytes(const Op& op,
                               std::span<const View> operands,
                               std::span<const View> results) override {
    return cpu::op_workspace_bytes(compute_, op, operands, results);
  }

  void run(const Op& op, const Views& views, StreamId stream) override {
    cpu::run_op(stream == StreamId{0} ? compute_ : comm_, op, views);
  }

  void synchronize() override {}

  void abort(std::string_view reason) override {
    if (abort_) {
      abort_(reason);
    }
  }

 private:
  cpu::Context comm_;
  cpu::Context compute_;  // after comm_: the OpenMP team of this thread is its own
  std::function<void(std::string_view)> abort_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads,
                                          CommunicatorOf communicator_of,
                                          CpuCommStream comm) {
  return std::make_unique<CpuBackend>(threads, std::move(communicator_of), std::move(comm));
}

}  // namespace tessera
