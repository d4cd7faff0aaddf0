#include "tessera/backend/cuda/cudnn/cudnn_graphs.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/backend/cuda/cudnn/cudnn_plan.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"

namespace tessera::cuda {
namespace {

// A problem with its plan.
struct Planned {
  FlashProblem problem;
  FlashGraph written;
  std::optional<CudnnPlan> plan;
};

constexpr const char* kOwn = "attention by own kernels, which are slower";

// Of the calling thread's device.
class CudnnHandle {
 public:
  explicit CudnnHandle(const Cudnn& cudnn) : cudnn_(cudnn) {
    check(cudnn_, cudnn_.create(&handle_), "cudnnCreate()");
  }

  ~CudnnHandle() { cudnn_.destroy(handle_); }

  CudnnHandle(const CudnnHandle&) = delete;
  CudnnHandle& operator=(const CudnnHandle&) = delete;

  const Cudnn& cudnn() const { return cudnn_; }

  cudnnHandle_t get() const { return handle_; }

 private:
  const Cudnn& cudnn_;
  cudnnHandle_t handle_ = nullptr;
};

class CudnnGraphs final : public Graphs {
 public:
  bool takes(const FlashProblem& problem) override { return planned_for(problem) != nullptr; }

  bool run(CUstream_st* stream,
           const FlashProblem& problem,
           const FlashPointers& pointers,
           std::span<std::byte> workspace) override {
    const Planned* const planned = planned_for(problem);
    if (planned == nullptr) {
      return false;
    }
    TESSERA_CHECK(static_cast<std::int64_t>(workspace.size()) >= planned->plan->workspace_bytes(),
                  "{} bytes of workspace for attention, expected {}",
                  workspace.size(),
                  planned->plan->workspace_bytes());
    const Cudnn& cudnn = handle_->cudnn();
    check(cudnn, cudnn.set_stream(handle_->get(), stream), "cudnnSetStream()");
    planned->plan->run(handle_->get(), planned->written.by_place(pointers), workspace.data());
    return true;
  }

 private:
  // Null where there is no plan.
  const Planned* planned_for(const FlashProblem& problem) {
    if (!has_looked_) {
      has_looked_ = true;
      open();
    }
    if (!handle_) {
      return nullptr;
    }
    const Planned& planned = plan_of(problem);
    return planned.plan ? &planned : nullptr;
  }

  void open() {
    std::string problem;
    try {
      if (const Cudnn* const cudnn = find_cudnn(problem)) {
        handle_.emplace(*cudnn);
      }
    } catch (const Error& error) {
      problem = error.message();
    }
    static std::atomic_flag said;  // by one rank for all
    if (!handle_ && !said.test_and_set()) {
      log_warning(format("{}: {}", kOwn, problem));
    }
  }

  const Planned& plan_of(const FlashProblem& problem) {
    const auto known = std::ranges::find_if(
        plans_, [&](const std::unique_ptr<Planned>& made) { return made->problem == problem; });
    if (known != plans_.end()) {
      return **known;
    }
    auto planned = std::make_unique<Planned>(
        Planned{.problem = problem, .written = flash_graph(problem), .plan = std::nullopt});
    std::string reasons;
    try {
      planned->plan = CudnnPlan::make(handle_->cudnn(),
                                      {.handle = handle_->get()},
                                      {.graph = planned->written.graph,
                                       .most_workspace = flash_workspace_bytes(problem),
                                       .any_order = problem.any_order},
                                      reasons);
    } catch (const Error& error) {
      reasons += format("\n  {}", error.message());
    }
    if (!planned->plan) {
      log_warning(format("{}{}: cuDNN {} has none for {} x {} tokens of {} heads, {} wide:{}",
                         problem.backward ? "backward: " : "",
                         kOwn,
                         cudnn_version(),
                         problem.batch,
                         problem.tokens,
                         problem.heads,
                         problem.channels,
                         reasons));
    }
    plans_.push_back(std::move(planned));
    return *plans_.back();
  }

  bool has_looked_ = false;
  std::optional<CudnnHandle> handle_;            // none: there is no cuDNN that can be used
  std::vector<std::unique_ptr<Planned>> plans_;  // a run has a few
};

}  // namespace

std::unique_ptr<Graphs> make_cudnn_graphs() {
  return std::make_unique<CudnnGraphs>();
}

}  // namespace tessera::cuda
