// The background thread of a process, which moves the messages of wires on which no thread waits.
#pragma once

#include <mutex>
#include <vector>

namespace allfold {

// It sleeps on an epoll of the wires' epolls. A wire in which a thread sleeps is removed from it, and added again when
// no thread has slept there for a while, so that a program that waits often does not pay for this thread.
class Keeper {
  public:
    class Client {
      public:
        // Move what can be moved, if no other thread is inside. True if there is more.
        virtual bool keep() = 0;
        // Called now and then; true if it should be called again. If no thread has slept there since the last time, it
        // asks to be watched.
        virtual bool look_after() = 0;
        // Only in a forked child: close the descriptors, and touch nothing else.
        virtual void close_in_child() = 0;

      protected:
        ~Client() = default;
    };

    static Keeper& of_process();

    void add(Client* wire);
    void remove(Client* wire);
    // These need no lock: the wire is known here, so the descriptors are open.
    void watch(int epoll);
    void unwatch(int epoll);
    // Let it call `look_after` of the wires that it does not watch.
    void ring();

  private:
    Keeper();
    void begin();
    void forget();
    void run();

    std::mutex mutex_;
    std::vector<Client*> wires_;
    int epoll_ = -1, bell_ = -1;
};

}  // namespace allfold
