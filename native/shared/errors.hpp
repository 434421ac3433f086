// The errors of the engine; the bindings turn each kind into the Python exception of the same name.
#pragma once

#include <stdexcept>
#include <string>

namespace allfold {

enum class Fault { usage, mismatch, rank_lost, timeout, memory };

class EngineError : public std::runtime_error {
  public:
    EngineError(Fault fault, const std::string& sentence) : std::runtime_error(sentence), fault(fault) {}
    Fault fault;
};

}  // namespace allfold
