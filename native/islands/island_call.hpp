// A whole call between islands: the ranks compare their calls, then its programs run, segment by segment.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "islands/message_run.hpp"

namespace allfold {

// The plan of all calls with one signature. Python makes it (engines/islands/execution/levels.py).
struct CallPlan {
    struct Stage {  // a part of the array, in segments: each is a run of the program
        std::shared_ptr<const MessageProgram> program;
        uint64_t first, elements;  // of the whole buffer
        uint64_t segment;          // elements
        int32_t ahead;             // segments that begin before one is finished; -1: all of them
        bool starts;               // a segment begins with MessageRun::start
    };
    std::vector<Stage> stages;
    bool along = false;  // one stage, for the whole call: its data are sent with the headers. `elements` may be 0: any
    bool waits_for_leader = false;  // no rank of the island continues before its leader has compared; not of `along`
    std::vector<std::pair<char*, size_t>> work;  // memory for work slots, which segments use in turns; may be empty
    std::vector<uint64_t> inputs, outputs;       // the bounds of slices that differ in length: see ChunkDivision
};

class IslandCall {
  public:
    // `said`: see said_bytes in collectives/signature.hpp. The plan, the links, the arrays and `said` outlive it.
    IslandCall(const CallPlan& plan, PeerLinks& links, const MessageArrays& arrays, DType dtype, Op op,
               const char* said, Waiting waiting);
    IslandCall(const IslandCall&) = delete;

    // The collectives of the island that it makes, one of each kind. The creator of this object sets their programs.
    std::vector<Call*> kinds();

    // Throws CallsDiffer if leaders make different calls, and the errors of waits and of the island's collectives.
    void perform();

  private:
    struct Kind {  // of segment: equally long ones make the same collectives
        uint64_t elements;
        std::vector<Call> calls;
    };

    void perform_parts();
    void compare();
    void perform(const CallPlan::Stage& stage, const Kind* kinds);
    uint64_t elements_along() const;  // of the whole buffer
    ChunkDivision division(const CallPlan::Stage& stage, uint64_t elements) const;
    uint32_t tag();

    const CallPlan& plan_;
    PeerLinks& links_;
    MessageArrays arrays_;
    DType dtype_;
    Op op_;
    uint32_t divisor_;
    const char* said_;
    Waiting waiting_;
    uint32_t tags_ = 0;
    bool is_compared_ = false;
    std::vector<Kind> kinds_;  // two for every stage: of its last segment, and of the others
    Call barrier_{};           // of the island
};

}  // namespace allfold
