#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/file_digest.h"
#include "tessera/ir/dtype.h"

namespace tessera {

enum class TensorRole {
  kParameter,  // in the compute dtype
  kMoment1,    // first moment of the gradient
  kMoment2,    // second moment
  kMaster,     // f32 copy of a parameter that is kept in a shorter type
};

// "parameter", "moment1", "moment2", "master".
std::string_view to_string(TensorRole role);

// What a checkpoint holds besides tensors.
struct CheckpointMeta {
  std::int64_t step = 0;           // last step that ended
  std::int64_t applied_steps = 0;  // steps whose update was applied: the optimizer's step count
  std::int64_t tokens_seen = 0;
  std::uint64_t seed = 0;
  std::string model = {};      // JSON text; compared when a run resumes
  std::string config = {};     // the resolved config, as text
  std::string tokenizer = {};  // XXH3, 128 bits, of the run's tokenizer.json; empty: not known

  friend bool operator==(const CheckpointMeta&, const CheckpointMeta&) = default;
};

struct ManifestFile {
  std::string name;  // within the checkpoint's directory
  FileDigest digest;

  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

// A box of a global tensor: which file holds it, and under which name.
struct ManifestSlice {
  std::string file;
  std::string key;
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> extent;

  friend bool operator==(const ManifestSlice&, const ManifestSlice&) = default;
};

// A global tensor, whatever the layout it was saved under: its slices cover it without overlap.
struct ManifestTensor {
  std::string name;
  TensorRole role = TensorRole::kParameter;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<ManifestSlice> slices;

  friend bool operator==(const ManifestTensor&, const ManifestTensor&) = default;
};

struct Manifest {
  CheckpointMeta meta;
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// JSON text that carries a checksum of itself.
// Errors: kInvalidArgument if meta.model is not JSON.
std::string print_manifest(const Manifest& manifest);

// The inverse of print_manifest; `path` is for messages.
// Errors: kInvalidData where a byte was changed or a field is missing or of the wrong type;
// kUnsupported for a newer version of the format.
Manifest parse_manifest(std::string_view text, const std::filesystem::path& path);

}  // namespace tessera
