// Checkpoints against the disk that they lie on: saving, loading, and how long a save in the
// background keeps training waiting; and weights in Hugging Face's form: loading, import, export.
// Peers in the same run: direct writes and reads of as many bytes, and a copy of them.
//
// usage: checkpoint_bench [--dir=DIR] [--mib=N]        DIR (default: build) names the disk

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "tessera/base/direct_file.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checkpoint_saver.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/hugging_face/weights.h"
#include "tessera/models/family.h"
#include "tessera/weights/export_weights.h"
#include "tessera/weights/import_weights.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kRounds = 8;  // even
constexpr int kThreads = 2;
constexpr std::size_t kPeerChunk = std::size_t{16} << 20U;

double seconds(const std::function<void()>& body) {
  const Clock::time_point start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 0 ? (values[half - 1] + values[half]) / 2 : values[half];
}

// One of the peers: what a disk gives to kThreads threads with aligned chunks.
template <class Access>
void raw(const fs::path& path, int flags, std::size_t bytes, const Access& access) {
  const int file = ::open(path.c_str(), flags | O_DIRECT | O_CLOEXEC, 0666);
  if (file < 0) {
    throw std::runtime_error(path.string() + ": " + std::strerror(errno));
  }
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        for (std::size_t at = next.fetch_add(kPeerChunk); at < bytes;
             at = next.fetch_add(kPeerChunk)) {
          failed = failed || access(file, at) != static_cast<ssize_t>(kPeerChunk);
        }
      });
    }
  }
  failed = failed || ::fsync(file) != 0;
  ::close(file);
  if (failed) {
    throw std::runtime_error(path.string() + ": direct access failed");
  }
}

// A training state: tensors of a few sizes, none aligned in memory as it is in the file.
class State {
 public:
  explicit State(std::size_t bytes) : memory_(bytes + kPeerChunk) {
    const std::span<std::byte> all = memory_.bytes();
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = static_cast<std::byte>(i * 2654435761U >> 13U);
    }
    std::size_t at = 0;
    for (int i = 0; at < bytes; ++i) {
      const std::size_t size = std::min(bytes - at, (std::size_t{1} << (20U + i % 6)) + 64);
      constexpr std::array kRoles = {
          TensorRole::kParameter, TensorRole::kMoment1, TensorRole::kMoment2};
      tensors_.push_back({.name = format("t{}", i / 3),
                          .role = kRoles.at(static_cast<std::size_t>(i % 3)),
                          .dtype = DType::kF32,
                          .shape = {static_cast<std::int64_t>(size / 4)},
                          .data = all.subspan(at, size / 4 * 4)});
      at += size;
    }
  }

  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }

  std::size_t size_bytes() const {
    std::size_t bytes = 0;
    for (const CheckpointTensor& tensor : tensors_) {
      bytes += tensor.data.size();
    }
    return bytes;
  }

 private:
  PageBuffer memory_;
  std::vector<CheckpointTensor> tensors_;
};

// The peer of start(): the same bytes to warm memory, by as many threads.
void copy(const State& state, std::span<std::byte> to) {
  std::vector<std::pair<std::span<const std::byte>, std::byte*>> copies;
  std::size_t at = 0;
  for (const CheckpointTensor& tensor : state.tensors()) {
    copies.emplace_back(tensor.data, to.data() + at);
    at += tensor.data.size();
  }
  std::atomic<std::size_t> next = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (std::size_t j = next++; j < copies.size(); j = next++) {
        std::memcpy(copies[j].second, copies[j].first.data(), copies[j].first.size());
      }
    });
  }
}

void load(const fs::path& checkpoint, std::span<std::byte> memory) {
  const CheckpointReader reader(checkpoint, {.verify = Verify::kOnLoad});
  std::vector<TensorRead> reads;
  std::size_t at = 0;
  for (const ManifestTensor& tensor : reader.tensors()) {
    const auto size = static_cast<std::size_t>(tensor.shape[0] * 4);
    reads.push_back({.tensor = &tensor, .first = 0, .out = memory.subspan(at, size)});
    at += size;
  }
  reader.load(reads);
}

void drop_caches(const fs::path& directory) {
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const FileDescriptor file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

// A disk's speed drifts while a bench runs, and what comes second may find what the first has left
// in some cache. So what is measured stands beside its peer, before it in every other round, and
// what counts is the ratio within two rounds.
class Pair {
 public:
  Pair(std::string what, std::string rest) : what_(std::move(what)), rest_(std::move(rest)) {}

  // Both return seconds.
  void measure(const std::function<double()>& own, const std::function<double()>& peer) {
    const bool peer_first = own_.size() % 2 == 0;
    const double before = peer_first ? peer() : own();
    const double after = peer_first ? own() : peer();
    own_.push_back(peer_first ? after : before);
    peer_.push_back(peer_first ? before : after);
  }

  void print(double bytes) const {
    std::vector<double> ratios;
    for (std::size_t i = 0; i + 1 < own_.size(); i += 2) {
      ratios.push_back((peer_[i] + peer_[i + 1]) / (own_[i] + own_[i + 1]));
    }
    std::printf("%-28s %6.2f GB/s, peer %6.2f GB/s: %.2f (%.2f to %.2f)   %s\n",
                what_.c_str(),
                bytes / median(own_) / 1e9,
                bytes / median(peer_) / 1e9,
                median(ratios),
                std::ranges::min(ratios),
                std::ranges::max(ratios),
                rest_.c_str());
  }

 private:
  std::string what_;
  std::string rest_;
  std::vector<double> own_, peer_;
};

// What is removed is given back to the disk before anything is timed.
void remove_settled(const fs::path& path) {
  fs::remove_all(path);
  ::sync();
}

// The peers of reading and writing so many bytes, which are whole chunks.
double raw_read(const fs::path& path, std::size_t bytes, const PageBuffer& memory) {
  return seconds([&] {
    raw(path, O_RDONLY, bytes, [&](int from, std::size_t at) {
      return ::pread(from, memory.bytes().data() + at, kPeerChunk, static_cast<off_t>(at));
    });
  });
}

double raw_write(const fs::path& path, std::size_t bytes, const PageBuffer& memory) {
  remove_settled(path);
  return seconds([&] {
    raw(path, O_WRONLY | O_CREAT, bytes, [&](int to, std::size_t at) {
      return ::pwrite(to, memory.bytes().data() + at, kPeerChunk, static_cast<off_t>(at));
    });
  });
}

void run(const fs::path& directory, std::size_t mib) {
  const State state((mib << 20U) / kPeerChunk * kPeerChunk);
  const std::size_t raw_bytes = state.size_bytes() / kPeerChunk * kPeerChunk;
  const PageBuffer memory(state.size_bytes() + kPeerChunk);
  std::ranges::fill(memory.bytes(), std::byte{1});
  const fs::path file = directory / "raw";
  const fs::path checkpoint = checkpoint_directory(directory, 1);
  const CheckpointMeta meta{.step = 1, .model = "{}"};
  CheckpointSaver saver({.threads = kThreads});
  saver.reserve(state.tensors());
  Pair saved("save", "target 0.85");
  Pair saved_copied("save from the copy", "target 0.85 (in the background)");
  Pair loaded("load", "target 0.85");
  std::vector<double> stall, copied, stall_ratio;
  const auto write_peer = [&] { return raw_write(file, raw_bytes, memory); };
  for (int round = 0; round < kRounds; ++round) {
    saved.measure(
        [&] {
          remove_settled(checkpoint);
          return seconds([&] { save_checkpoint(checkpoint, meta, state.tensors()); });
        },
        write_peer);
    saved_copied.measure(
        [&] {
          remove_settled(checkpoint);
          stall.push_back(seconds([&] { saver.start(checkpoint, meta, state.tensors()); }));
          return seconds([&] {
            saver.wait();
            saver.finish();
          });
        },
        write_peer);
    copied.push_back(seconds([&] { copy(state, memory.bytes()); }));
    stall_ratio.push_back(stall.back() / copied.back());
    drop_caches(checkpoint);
    loaded.measure([&] { return seconds([&] { load(checkpoint, memory.bytes()); }); },
                   [&] { return raw_read(file, raw_bytes, memory); });
  }
  const auto bytes = static_cast<double>(raw_bytes);
  std::printf(
      "checkpoint of %zu MiB, medians of %d rounds; ratio: own speed over the peer's in two\n",
      state.size_bytes() >> 20U,
      kRounds);
  saved.print(bytes);
  saved_copied.print(bytes);
  loaded.print(bytes);
  std::printf("stall of a background save   %.3f s, peer %.3f s (copy): %.2f times   target 1.3\n",
              median(stall),
              median(copied),
              median(stall_ratio));
}

// A Llama of about so many MiB of weights.
ModelSection llama_of(std::size_t mib, DType dtype) {
  constexpr std::int64_t kDim = 2048;
  constexpr std::int64_t kFfn = 5632;
  constexpr std::int64_t kVocab = 32000;
  const auto elements =
      static_cast<std::int64_t>((mib << 20U) / size_bytes(dtype)) - 2 * kVocab * kDim;
  return model_family("llama3").resolve(
      {.name = "llama3",
       .dim = kDim,
       .layers = std::max<std::int64_t>(elements / (4 * kDim * kDim + 3 * kDim * kFfn), 1),
       .heads = 16,
       .ffn = kFfn,
       .vocab = kVocab});
}

// Writes its directory, with weights that mean nothing.
void make_directory(const fs::path& directory, const ModelSection& section, DType dtype) {
  const ModelFamily& family = model_family(section.name);
  fs::create_directories(directory);
  write_file_atomic(directory / "config.json",
                    family.hugging_face_config(section, {.dtype = dtype, .sequence_length = 512}));
  std::vector<SafetensorsTensor> tensors;
  std::size_t largest = 0;
  for (const HuggingFaceWeight& weight : family.hugging_face_weights(section)) {
    const auto size =
        static_cast<std::size_t>(weight.rows() * weight.columns()) * size_bytes(dtype);
    largest = std::max(largest, size);
    tensors.push_back({.name = weight.name, .dtype = dtype, .shape = weight.shape});
  }
  const PageBuffer memory(largest);
  std::ranges::fill(memory.bytes(), std::byte{0x3c});
  for (SafetensorsTensor& tensor : tensors) {
    std::size_t size = size_bytes(dtype);
    for (const std::int64_t bound : tensor.shape) {
      size *= static_cast<std::size_t>(bound);
    }
    tensor.data = memory.bytes().first(size);
  }
  write_safetensors(directory / "model.safetensors", tensors);
}

// The model's parameters in `memory`, in `dtype`.
void load_weights(const fs::path& directory, DType dtype, std::span<std::byte> memory) {
  const HuggingFaceModel model = read_hugging_face_model(directory);
  const HuggingFaceWeights weights(directory, model.section);
  std::vector<WeightRead> reads;
  std::size_t at = 0;
  for (const HuggingFaceWeight& weight :
       model_family(model.section.name).hugging_face_weights(model.section)) {
    for (std::size_t part = 0; part < weight.parts.size(); ++part) {
      const auto size =
          static_cast<std::size_t>(weight.part_rows(part) * weight.columns()) * size_bytes(dtype);
      reads.push_back({.parameter = weight.parts[part].parameter,
                       .dtype = dtype,
                       .out = memory.subspan(at, size)});
      at += size;
    }
  }
  weights.load(reads);
}

void run_weights(const fs::path& directory, std::size_t mib) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const fs::path source = directory / "source";
    const fs::path checkpoint = directory / "imported";
    const fs::path output = directory / "exported";
    const fs::path scratch = directory / "raw";
    const ModelSection section = llama_of(mib, dtype);
    make_directory(source, section, dtype);
    const fs::path file = source / "model.safetensors";
    const std::size_t bytes = fs::file_size(file) / kPeerChunk * kPeerChunk;
    const PageBuffer memory(fs::file_size(file) * 4 / size_bytes(dtype) + kPeerChunk);
    std::ranges::fill(memory.bytes(), std::byte{1});
    Pair same("load", "target 0.85");
    Pair widened("load as f32", "target 0.85");
    // The disk reads and writes in either case; one that does both at once is not faster.
    Pair imported("import", "(peer reads, then writes)");
    Pair exported("export", "target 0.85 (peer reads, then writes)");
    const auto read_peer = [&] { return raw_read(file, bytes, memory); };
    const auto both_peers = [&] { return read_peer() + raw_write(scratch, bytes, memory); };
    const auto loading = [&](DType to) {
      return [&, to] { return seconds([&] { load_weights(source, to, memory.bytes()); }); };
    };
    for (int round = 0; round < kRounds; ++round) {
      drop_caches(source);
      same.measure(loading(dtype), read_peer);
      if (dtype != DType::kF32) {
        widened.measure(loading(DType::kF32), read_peer);
      }
      imported.measure(
          [&] {
            remove_settled(checkpoint);
            drop_caches(source);
            return seconds([&] { import_weights({.source = source, .checkpoint = checkpoint}); });
          },
          both_peers);
      exported.measure(
          [&] {
            remove_settled(output);
            drop_caches(checkpoint);
            return seconds([&] { export_weights({.checkpoint = checkpoint, .output = output}); });
          },
          both_peers);
    }
    fs::remove_all(checkpoint);
    fs::remove_all(output);
    const auto total = static_cast<double>(bytes);
    std::printf("weights of %zu MiB in %s\n", bytes >> 20U, std::string(name(dtype)).c_str());
    same.print(total);
    if (dtype != DType::kF32) {
      widened.print(total);
    }
    imported.print(total);
    exported.print(total);
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::filesystem::path parent = "build";
  std::size_t mib = 1536;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--dir=")) {
      parent = argument.substr(std::string_view("--dir=").size());
    } else if (argument.starts_with("--mib=")) {
      mib = static_cast<std::size_t>(std::atoll(argv[i] + std::string_view("--mib=").size()));
    }
  }
  const std::filesystem::path directory = parent / "checkpoint-bench";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  tessera::run(directory, mib);
  tessera::run_weights(directory, mib);
  std::filesystem::remove_all(directory);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
