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

  // What is known of a product. From then on the first file has it, too: it says all that was used.
  std::optional<std::string> use(const std::string& product);

  // From now on, in all files, of which those behind the first keep what they have. Texts have no
  // tabs and no line feeds.
  void add(const std::string& product, const std::string& algorithm);

  // Writes what was used or added since, each file at once. What others wrote meanwhile stays,
  // unless they write at the same moment. A file that cannot be written is warned of, once.
  void keep();

 private:
  // By "machine\tproduct".
  using Entries = std::map<std::string, std::string>;

  struct File {
    std::filesystem::path path;
    Entries known;
    Entries changed;       // of these, what the file has not yet
    bool is_lost = false;  // it cannot be written
  };

  static Entries read(const std::filesystem::path& path);
  static void write(const std::filesystem::path& path, const Entries& entries);
  static void write_changes(const File& file, bool replaces);
  std::string key_of(const std::string& product) const;

  std::string machine_;
  std::vector<File> files_;
};

}  // namespace tessera::cuda
