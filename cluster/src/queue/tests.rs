use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const BACKOFF: Backoff = Backoff { start: Duration::from_secs(1), max: Duration::from_secs(4) };

fn queue() -> Queue<u32> {
    Queue::new("test", BACKOFF, &Metrics::default())
}

#[tokio::test(start_paused = true)]
async fn no_key_is_worked_twice_at_once_and_no_add_is_lost() {
    let (queue, stop) = (queue(), CancellationToken::new());
    let (running, runs) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let worker = tokio::spawn(run(queue.clone(), 8, stop.clone(), {
        let (running, runs) = (Arc::clone(&running), Arc::clone(&runs));
        move |_| {
            let (running, runs) = (Arc::clone(&running), Arc::clone(&runs));
            async move {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "the key is already being worked");
                tokio::time::sleep(Duration::from_secs(1)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                runs.fetch_add(1, Ordering::SeqCst);
                Outcome::Done
            }
        }
    }));
    for _ in 0..5 {
        queue.add(7);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(
        runs.load(Ordering::SeqCst),
        2,
        "one run for the first add, one for those that came during it"
    );
    stop.cancel();
    worker.await.expect("worker");
}

#[tokio::test(start_paused = true)]
async fn a_failing_key_comes_back_with_growing_delays_and_starts_over_after_success() {
    let (queue, stop) = (queue(), CancellationToken::new());
    let times = Arc::new(Mutex::new(Vec::new()));
    let worker = tokio::spawn(run(queue.clone(), 1, stop.clone(), {
        let times = Arc::clone(&times);
        move |_| {
            let times = Arc::clone(&times);
            async move {
                let mut times = times.lock().expect("lock");
                times.push(Instant::now());
                if times.len() < 5 { Outcome::Retry } else { Outcome::Done }
            }
        }
    }));
    queue.add(1);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let gaps: Vec<u64> =
        times.lock().expect("lock").windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
    assert_eq!(gaps, [1, 2, 4, 4]);
    assert_eq!(queue.failures(&1), 0);
    stop.cancel();
    worker.await.expect("worker");
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_running_work_end_and_begins_nothing_new() {
    let (queue, stop) = (queue(), CancellationToken::new());
    let ended = Arc::new(AtomicUsize::new(0));
    let worker = tokio::spawn(run(queue.clone(), 1, stop.clone(), {
        let ended = Arc::clone(&ended);
        move |_| {
            let ended = Arc::clone(&ended);
            async move {
                tokio::time::sleep(Duration::from_secs(10)).await;
                ended.fetch_add(1, Ordering::SeqCst);
                Outcome::Done
            }
        }
    }));
    queue.add(1);
    queue.add(2);
    tokio::time::sleep(Duration::from_secs(1)).await;
    stop.cancel();
    worker.await.expect("worker");
    assert_eq!(ended.load(Ordering::SeqCst), 1);
    assert_eq!(queue.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn keys_are_worked_side_by_side_up_to_the_number_of_workers() {
    let (queue, stop) = (queue(), CancellationToken::new());
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let worker = tokio::spawn(run(queue.clone(), 3, stop.clone(), {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        move |_| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_secs(1)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                Outcome::Done
            }
        }
    }));
    (0..10).for_each(|key| queue.add(key));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(most.load(Ordering::SeqCst), 3);
    assert!(queue.is_empty());
    stop.cancel();
    worker.await.expect("worker");
}
