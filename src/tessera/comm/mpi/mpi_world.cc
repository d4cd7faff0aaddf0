// The entry of the plugins libtessera_openmpi.so and libtessera_mpich.so: this folder's sources
// compiled with the headers of one MPI library, TESSERA_MPI_LIBRARY.

#include <chrono>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/agreement.h"
#include "tessera/comm/channel.h"
#include "tessera/comm/mover.h"
#include "tessera/comm/mpi/mpi_plugin.h"
#include "tessera/comm/mpi/mpi_run.h"

namespace tessera {
namespace {

class MpiWorld final : public World {
 public:
  explicit MpiWorld(std::shared_ptr<MpiRun> run) : run_(std::move(run)) {}

  std::int64_t rank() const override { return run_->rank(); }

  std::int64_t size() const override { return run_->size(); }

  std::unique_ptr<Communicator> group(std::span<const std::int64_t> members,
                                      std::int64_t generation,
                                      const Mover& mover) override {
    require_host(mover);
    return make_mpi_communicator(run_, members, generation);
  }

  std::unique_ptr<Channel> channel(const ChannelKey& key,
                                   std::int64_t generation,
                                   const Mover& mover) override {
    require_host(mover);
    return make_mpi_channel(run_, key, generation);
  }

  // Nobody else's transfers ring it.
  Bell& bell() override { return run_->bell(); }

  std::chrono::microseconds longest_sleep() const override {
    return std::chrono::microseconds(200);
  }

  Progress& progress() override { return run_->gossip().own(); }

  const RunProgress& run_progress() const override { return run_->gossip(); }

  void exchange_progress() override { run_->exchange_progress(); }

  void abort(std::string_view reason) override { run_->abort(reason); }

  std::optional<std::string> abort_reason() override {
    run_->take_control_messages();
    return run_->aborted() ? std::optional(run_->abort_reason()) : std::nullopt;
  }

  void leave() override {
    std::vector<std::int64_t> everybody(static_cast<std::size_t>(size()));
    std::iota(everybody.begin(), everybody.end(), 0);
    constexpr std::int64_t kLastGeneration = -1;
    run_->gossip().forget_peers();
    group(everybody, kLastGeneration, host_mover())->barrier();
    run_->take_control_messages();  // what is left of them: nobody sends any more
    run_->finalize();
  }

 private:
  static void require_host(const Mover& mover) {
    TESSERA_REQUIRE(mover.is_host(),
                    ErrorCode::kUnsupported,
                    "ranks over MPI work in the host's memory: set run.device = \"cpu\", or start "
                    "one process, whose ranks share its GPUs");
  }

  std::shared_ptr<MpiRun> run_;  // communicators and channels use it too
};

World* join(const MpiLaunch& launch, const WorldOptions& options) {
  return std::make_unique<MpiWorld>(std::make_shared<MpiRun>(launch, options)).release();
}

}  // namespace
}  // namespace tessera

extern "C" const tessera::MpiPlugin* tessera_mpi_plugin() {
  static constexpr tessera::MpiPlugin kPlugin = {
      .abi = tessera::kMpiPluginAbi,
      .version = TESSERA_VERSION,
      .library = tessera::MpiLibrary::TESSERA_MPI_LIBRARY,
      .join = tessera::join};
  return &kPlugin;
}
