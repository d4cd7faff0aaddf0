#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::cuda {

// Which algorithm of a library was the fastest for a matrix product, from run to run: a text for
// each product on each kind of machine. Several processes may use the same files.
class AlgorithmCache {
 public:
  // Where a product stands in several files, the first of them decides. A file that is not there is
  // empty; one that cannot be read, and lines that are none, are warned of and left out.
  // `machine` is what algorithms hold for: a device and the library's version.
  AlgorithmCache(const std::string& machine, std::vector<std::filesystem::path> files);

  std::optional<std::string> find(const std::string& product) const;

  // From now on, in all files: what others wrote since stays. A file that cannot be written is
  // warned of, once. Texts have no tabs and no line feeds.
  void add(const std::string& product, const std::string& algorithm);

 private:
  struct File {
    std::filesystem::path path;
    bool is_lost = false;  // it cannot be written
  };

  // By "machine\tproduct".
  using Entries = std::map<std::string, std::string>;

  static Entries read(const std::filesystem::path& path);
  static void write(const std::filesystem::path& path, const Entries& entries);
  std::string key_of(const std::string& product) const;

  std::string machine_;
  std::vector<File> files_;
  Entries known_;
};

}  // namespace tessera::cuda
