#include "tessera/ops/testing/execute.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/dispatch.h"
#include "tessera/base/error.h"
#include "tessera/ops/testing/all_samples.h"

namespace tessera::conformance {
namespace {

constexpr std::size_t kAlignment = 64;  // what arenas and workspaces promise to kernels
constexpr std::size_t kGuardBytes = 512;
constexpr std::byte kGuard{0xA5};
constexpr std::int64_t kGapBefore = 3;  // indices around a slice, in the sliced dim
constexpr std::int64_t kGapAfter = 2;

// A tensor amid guard bytes; with `sliced_dim`, a slice of a larger tensor that is all guard.
class GuardedTensor {
 public:
  GuardedTensor(const TensorType& type, std::int32_t sliced_dim, std::byte poison) : type_(type) {
    TensorType full = type;
    std::int64_t first = 0;
    if (sliced_dim >= 0) {
      full.dims[static_cast<std::size_t>(sliced_dim)].bound += kGapBefore + kGapAfter;
    }
    strides_ = row_major_strides(full);
    run_ = run_stride_ = type.num_elements();
    if (sliced_dim >= 0) {
      const auto dim = static_cast<std::size_t>(sliced_dim);
      first = kGapBefore * strides_[dim];
      run_ = type.dims[dim].bound * strides_[dim];
      run_stride_ = full.dims[dim].bound * strides_[dim];
    }
    const auto payload = static_cast<std::size_t>(full.num_bytes());
    bytes_.assign(payload + 2 * kGuardBytes + kAlignment, kGuard);
    void* start = bytes_.data() + kGuardBytes;
    std::size_t space = payload + kAlignment;
    std::align(kAlignment, payload, start, space);
    data_ = static_cast<std::byte*>(start) + static_cast<std::size_t>(first) * element_bytes();
    for_each_run([&](std::byte* place, std::size_t, std::size_t bytes) {
      std::memset(place, std::to_integer<int>(poison), bytes);
    });
  }

  // The elements as a tensor of `type`, which may name a result over this operand's memory.
  View view(const TensorType& type) const {
    View view;
    view.data = data_;
    view.dtype = type.dtype;
    view.num_dims = static_cast<std::int32_t>(type.num_dims());
    for (std::size_t i = 0; i < type.num_dims(); ++i) {
      view.sizes[i] = type.dims[i].bound;
      view.strides[i] = strides_[i];
    }
    return view;
  }

  const TensorType& type() const { return type_; }

  // All of its memory, guards included.
  std::span<std::byte> memory() { return bytes_; }

  void write(const HostTensor& content) {
    for_each_run([&](std::byte* place, std::size_t done, std::size_t bytes) {
      std::memcpy(place, content.bytes().data() + done, bytes);
    });
  }

  HostTensor read(const TensorType& type) const {
    HostTensor content(type);
    for_each_run([&](const std::byte* place, std::size_t done, std::size_t bytes) {
      std::memcpy(content.bytes().data() + done, place, bytes);
    });
    return content;
  }

  // True while no byte outside the elements has changed. Destroys the elements.
  bool guards_are_intact() {
    for_each_run([&](std::byte* place, std::size_t, std::size_t bytes) {
      std::memset(place, std::to_integer<int>(kGuard), bytes);
    });
    return std::ranges::all_of(bytes_, [](std::byte byte) { return byte == kGuard; });
  }

 private:
  std::size_t element_bytes() const { return size_bytes(type_.dtype); }

  // Calls body(place, bytes before it, bytes) for elements that lie side by side, in order.
  template <class Body>
  void for_each_run(Body body) const {
    const std::size_t bytes = static_cast<std::size_t>(run_) * element_bytes();
    const std::size_t stride = static_cast<std::size_t>(run_stride_) * element_bytes();
    const std::int64_t runs = run_ == 0 ? 0 : type_.num_elements() / run_;
    for (std::size_t i = 0; i < static_cast<std::size_t>(runs); ++i) {
      body(data_ + i * stride, i * bytes, bytes);
    }
  }

  TensorType type_;
  std::vector<std::int64_t> strides_;
  std::int64_t run_ = 0;         // elements side by side
  std::int64_t run_stride_ = 0;  // elements from one run to the next
  std::vector<std::byte> bytes_;
  std::byte* data_ = nullptr;
};

TensorTypes types_of(std::span<const HostTensor> tensors) {
  TensorTypes types;
  for (const HostTensor& tensor : tensors) {
    types.push_back(tensor.type());
  }
  return types;
}

// The operand whose memory result `result` takes.
std::optional<std::size_t> operand_under(const OpInfo& facts,
                                         std::span<const Alias> taken,
                                         std::size_t result) {
  for (const Alias& alias : facts.aliases) {
    const bool holds = alias.required || std::ranges::find(taken, alias) != taken.end();
    if (holds && static_cast<std::size_t>(alias.result) == result) {
      return static_cast<std::size_t>(alias.operand);
    }
  }
  return std::nullopt;
}

Outcome execute_view_op(const Op& op, std::span<const HostTensor> operands) {
  const TensorTypes types = types_of(operands);
  std::vector<HostTensor> wide;
  std::ranges::transform(operands, std::back_inserter(wide), widened);
  Outcome outcome{.results = reference_results(op, types, wide, {}), .failures = {}};
  const TensorTypes result_types = infer(op, types);
  for (std::size_t i = 0; i < result_types.size(); ++i) {
    outcome.results[i] = rounded(outcome.results[i], result_types[i].dtype);
  }
  return outcome;
}

// The buffers of one run.
class Stage {
 public:
  Stage(const Op& op, std::span<const HostTensor> operands, const Execution& execution)
      : op_(op),
        contents_(operands),
        operand_types_(types_of(operands)),
        result_types_(infer(op, operand_types_)) {
    for (const HostTensor& operand : operands) {
      buffers_.push_back(std::make_unique<GuardedTensor>(
          operand.type(), slice_of(operand.type(), execution), kGuard));
      buffers_.back()->write(operand);
      names_.push_back(format("operand {}", names_.size()));
      in_.push_back(buffers_.back()->view(operand.type()));
    }
    for (std::size_t i = 0; i < result_types_.size(); ++i) {
      const TensorType& type = result_types_[i];
      const auto under = operand_under(info(op), execution.aliases, i);
      result_buffers_.push_back(under.value_or(buffers_.size()));
      if (!under) {
        buffers_.push_back(
            std::make_unique<GuardedTensor>(type, slice_of(type, execution), execution.poison));
        names_.push_back(format("result {}", i));
      }
      const GuardedTensor& buffer = *buffers_[result_buffers_[i]];
      TESSERA_CHECK(
          buffer.type().num_elements() == type.num_elements() && buffer.type().dtype == type.dtype,
          "result {} is {} over the memory of {}",
          i,
          to_string(type),
          to_string(buffer.type()));
      out_.push_back(buffer.view(type));
    }
  }

  Outcome run(const Execution& execution) {
    cpu::Context context(execution.threads);
    context.set_communicators(execution.communicator_of);
    const std::int64_t bytes = execution.backend != nullptr
                                   ? execution.backend->workspace_bytes(op_, in_, out_)
                                   : cpu::op_workspace_bytes(context, op_, in_, out_);
    const TensorType workspace_type{.dtype = DType::kU8,
                                    .dims = {{.name = "bytes", .bound = bytes}}};
    GuardedTensor workspace(workspace_type, -1, execution.poison);
    const std::span<std::byte> workspace_view(workspace.view(workspace_type).as<std::byte>(),
                                              static_cast<std::size_t>(bytes));
    if (execution.backend != nullptr) {
      run_far(*execution.backend, workspace, workspace_view);
    } else {
      cpu::run_op(context, op_, {.in = in_, .out = out_, .workspace = workspace_view});
    }
    Outcome outcome;
    for (std::size_t i = 0; i < result_types_.size(); ++i) {
      outcome.results.push_back(buffers_[result_buffers_[i]]->read(result_types_[i]));
    }
    check_buffers(outcome.failures);
    if (!workspace.guards_are_intact()) {
      outcome.failures.push_back(format("writes outside its workspace of {} bytes", bytes));
    }
    return outcome;
  }

 private:
  // In an arena of the backend, where all buffers lie one after the other, guards included.
  void run_far(Backend& backend, GuardedTensor& workspace, std::span<std::byte> workspace_view) {
    std::vector<std::span<std::byte>> memories;
    for (const std::unique_ptr<GuardedTensor>& buffer : buffers_) {
      memories.push_back(buffer->memory());
    }
    memories.push_back(workspace.memory());
    std::vector<std::int64_t> offsets;
    std::int64_t total = 0;
    for (const std::span<std::byte> memory : memories) {
      // What is aligned here is aligned there.
      const auto excess = reinterpret_cast<std::uintptr_t>(memory.data()) % kAlignment;
      offsets.push_back(total + static_cast<std::int64_t>(excess));
      total += static_cast<std::int64_t>((memory.size() / kAlignment + 2) * kAlignment);
    }
    const std::unique_ptr<Arena> arena = backend.allocate(total);
    const auto far = [&](void* here) -> std::byte* {
      auto* const place = static_cast<std::byte*>(here);
      for (std::size_t i = 0; i < memories.size(); ++i) {
        const std::ptrdiff_t within = place - memories[i].data();
        if (within >= 0 && within <= std::ssize(memories[i])) {
          return arena->data() + offsets[i] + within;
        }
      }
      fail(ErrorCode::kInternal, "a view into no buffer");
    };
    for (std::size_t i = 0; i < memories.size(); ++i) {
      std::ranges::copy(memories[i], arena->host() + offsets[i]);
    }
    arena->to_device(0, total);
    std::vector<View> in = in_;
    std::vector<View> out = out_;
    for (std::vector<View>* views : {&in, &out}) {
      for (View& view : *views) {
        view.data = far(view.data);
      }
    }
    backend.run(
        op_,
        {.in = in, .out = out, .workspace = {far(workspace_view.data()), workspace_view.size()}},
        StreamId{0});
    backend.synchronize();
    arena->to_host(0, total);
    for (std::size_t i = 0; i < memories.size(); ++i) {
      std::copy_n(arena->host() + offsets[i], memories[i].size(), memories[i].data());
    }
  }

  std::int32_t slice_of(const TensorType& type, const Execution& execution) const {
    const bool is_sliced =
        !operand_types_.empty() && type.num_dims() == operand_types_[0].num_dims();
    return is_sliced ? execution.sliced_dim : -1;
  }

  void check_buffers(std::vector<std::string>& failures) {
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      const bool is_operand = i < contents_.size();
      const bool is_overwritten = std::ranges::find(result_buffers_, i) != result_buffers_.end();
      if (is_operand && !is_overwritten && buffers_[i]->read(operand_types_[i]) != contents_[i]) {
        failures.push_back(format("changes its operand {}", i));
      }
      if (!buffers_[i]->guards_are_intact()) {
        failures.push_back(format("writes outside its {}", names_[i]));
      }
    }
  }

  const Op& op_;
  std::span<const HostTensor> contents_;
  TensorTypes operand_types_;
  TensorTypes result_types_;
  std::vector<std::unique_ptr<GuardedTensor>> buffers_;  // operands, then results of their own
  std::vector<std::string> names_;                       // of the buffers
  std::vector<std::size_t> result_buffers_;              // the buffer of each result
  std::vector<View> in_;
  std::vector<View> out_;
};

}  // namespace

Outcome execute(const Op& op, std::span<const HostTensor> operands, const Execution& execution) {
  if (info(op).view != ViewKind::kNone) {
    return execute_view_op(op, operands);
  }
  return Stage(op, operands, execution).run(execution);
}

}  // namespace tessera::conformance
